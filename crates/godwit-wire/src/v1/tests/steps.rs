//! The steps of moves and handoffs against `steps.txt`. The rules of `golden.txt` hold for
//! that file, too.

use super::*;
use crate::HandoffRefusal;

const GOLDEN: &str = include_str!("../steps.txt");

fn moves() -> [Message; 3] {
    let scope = scope();
    [
        MoveStep::Prepare,
        MoveStep::Ready {
            successor: Epoch::new(0x6553_1000, 4),
        },
        MoveStep::Refused {
            reason: MoveRefusal::ALL[0],
        },
    ]
    .map(|step| Message::Move(scope, step))
}

fn handoffs() -> [Message; 12] {
    let Scope { share, epoch, .. } = scope();
    let id = HandoffId {
        flow: flow(),
        epoch: FlowEpoch(2),
    };
    let party = Party { number: 3, size: 2 };
    let alone = Party::ALONE;
    let (part, packet) = (b"state".to_vec(), b"packet".to_vec());
    let reason = HandoffRefusal::ALL[0];
    let last = false;
    [
        HandoffStep::Prepare { party: alone },
        HandoffStep::Prepare { party },
        HandoffStep::Ready,
        HandoffStep::State { last, part },
        HandoffStep::Prepared,
        HandoffStep::Commit,
        HandoffStep::Done,
        HandoffStep::Settled,
        HandoffStep::Abort,
        HandoffStep::Held { packet },
        HandoffStep::Refused { reason },
        HandoffStep::Over,
    ]
    .map(|step| {
        Message::Handoff(HandoffMessage {
            share,
            epoch,
            id,
            step,
        })
    })
}

fn questions() -> [Message; 4] {
    QuestionWord::ALL.map(|word| {
        Message::Question(Question {
            flow: flow(),
            number: 0x0104,
            word,
        })
    })
}

#[test]
fn steps_have_the_bytes_that_they_had() {
    let mut all = moves().to_vec();
    all.extend(handoffs());
    all.extend(questions());
    let lines: Vec<_> = all.iter().map(render).collect();
    assert_eq!(lines, GOLDEN.lines().collect::<Vec<_>>());
}
