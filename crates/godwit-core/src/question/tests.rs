//! Every order of the steps of an origin, a target and what is between them.

use std::collections::{BTreeSet, VecDeque};

use super::*;

#[test]
fn every_word_is_decided_on_either_route() {
    for (route, memory) in Route::ALL
        .into_iter()
        .flat_map(|it| Memory::ALL.map(|m| (it, m)))
    {
        let settled = QuestionWord::ALL.map(|word| settle(word, route, memory));
        let never = match memory {
            Memory::Whole => Settling::TakeBack,
            Memory::Partial => Settling::Lapse,
        };
        let has = match route {
            Route::Direct => Settling::LetGo,
            Route::ByStandby => Settling::PutAgain,
        };
        assert_eq!(settled, [Settling::Ignore, never, has, Settling::Wait]);
    }
}

/// What a server does wrong, for the search below to find.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mutant {
    None,
    /// The order looks at the connection before it rules the question out.
    LooksFirst,
    /// Who accepts does not look again whether the question was ruled out.
    LooksOnce,
    /// A connection that is being accepted is called not there.
    NeverComing,
    /// A question that was ruled out is accepted when it comes late.
    Forgets,
}

/// The connection at its origin.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Origin {
    Asked,
    Back,
    Gone,
}

/// The connection at its target (`enum gw_transfer_state`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Target {
    None,
    /// A question has come that was not ruled out; nothing is written yet.
    Arriving,
    Coming,
    /// The same entry: it has looked for a ruling, found none, and is about to be here.
    Cleared,
    Here,
    Refused,
}

/// The order of the target's agent, step by step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Ruling {
    Idle,
    Begun(Option<Said>),
}

/// A word, as something that can be sorted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Said {
    Never,
    Has,
    Later,
}

impl Said {
    const fn word(self) -> QuestionWord {
        match self {
            Self::Never => QuestionWord::Never,
            Self::Has => QuestionWord::Has,
            Self::Later => QuestionWord::Later,
        }
    }
}

/// All there is: one connection and one question.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct World {
    origin: Origin,
    target: Target,
    ruled_out: bool,
    ruling: Ruling,
    /// Copies of the question on the link; one that is taken may have been lost.
    questions: u8,
    accepted: bool,
    refused: bool,
    /// On the control link, which loses nothing while it is up.
    asked: bool,
    answer: Option<Said>,
}

impl World {
    const START: Self = Self {
        origin: Origin::Asked,
        target: Target::None,
        ruled_out: false,
        ruling: Ruling::Idle,
        questions: 1,
        accepted: false,
        refused: false,
        asked: false,
        answer: None,
    };

    fn next(self, mutant: Mutant) -> Vec<Self> {
        let mut all = Vec::new();
        self.of_origin(&mut all);
        self.of_link(mutant, &mut all);
        self.of_agent(mutant, &mut all);
        all
    }

    fn of_origin(self, all: &mut Vec<Self>) {
        if self.origin == Origin::Asked {
            // The client says the request again.
            if self.questions < 2 {
                all.push(Self {
                    questions: self.questions + 1,
                    ..self
                });
            }
            if !self.asked && self.ruling == Ruling::Idle && self.answer.is_none() {
                all.push(Self {
                    asked: true,
                    ..self
                });
            }
        }
        let decided = |origin| {
            if self.origin == Origin::Asked {
                origin
            } else {
                self.origin
            }
        };
        if self.accepted {
            let origin = decided(Origin::Gone);
            let accepted = false;
            all.push(Self {
                origin,
                accepted,
                ..self
            });
        }
        if self.refused {
            let origin = decided(Origin::Back);
            let refused = false;
            all.push(Self {
                origin,
                refused,
                ..self
            });
        }
        if let Some(word) = self.answer {
            let origin = match settle(word.word(), Route::Direct, Memory::Whole) {
                Settling::TakeBack => decided(Origin::Back),
                Settling::LetGo => decided(Origin::Gone),
                Settling::Lapse | Settling::PutAgain | Settling::Wait | Settling::Ignore => {
                    self.origin
                }
            };
            let answer = None;
            all.push(Self {
                origin,
                answer,
                ..self
            });
        }
    }

    fn of_link(self, mutant: Mutant, all: &mut Vec<Self>) {
        // Answers are lost, too.
        for (accepted, refused) in [(false, self.refused), (self.accepted, false)] {
            all.push(Self {
                accepted,
                refused,
                ..self
            });
        }
        if self.target == Target::Coming {
            let is_out = self.ruled_out && ![Mutant::LooksOnce, Mutant::Forgets].contains(&mutant);
            all.push(Self {
                target: if is_out {
                    Target::Refused
                } else {
                    Target::Cleared
                },
                refused: self.refused || is_out,
                ..self
            });
        }
        if self.target == Target::Arriving {
            all.push(Self {
                target: Target::Coming,
                ..self
            });
        }
        if self.target == Target::Cleared {
            all.push(Self {
                target: Target::Here,
                accepted: true,
                ..self
            });
        }
        if self.questions == 0 {
            return;
        }
        let rest = Self {
            questions: self.questions - 1,
            ..self
        };
        all.push(rest);
        let is_out = self.ruled_out && mutant != Mutant::Forgets;
        all.push(match self.target {
            Target::None if is_out => Self {
                target: Target::Refused,
                refused: true,
                ..rest
            },
            Target::None => Self {
                target: Target::Arriving,
                ..rest
            },
            Target::Arriving | Target::Coming | Target::Cleared => rest,
            Target::Here => Self {
                accepted: true,
                ..rest
            },
            Target::Refused => Self {
                refused: true,
                ..rest
            },
        });
    }

    /// What the order sees of the connection.
    fn seen(self, mutant: Mutant) -> Said {
        match self.target {
            Target::Coming | Target::Cleared if mutant == Mutant::NeverComing => Said::Never,
            Target::Coming | Target::Cleared => Said::Later,
            Target::Here => Said::Has,
            Target::None | Target::Arriving | Target::Refused => Said::Never,
        }
    }

    fn of_agent(self, mutant: Mutant, all: &mut Vec<Self>) {
        match self.ruling {
            Ruling::Idle if self.asked => all.push(if mutant == Mutant::LooksFirst {
                Self {
                    asked: false,
                    ruling: Ruling::Begun(Some(self.seen(mutant))),
                    ..self
                }
            } else {
                Self {
                    asked: false,
                    ruled_out: true,
                    ruling: Ruling::Begun(None),
                    ..self
                }
            }),
            Ruling::Idle => {}
            Ruling::Begun(seen) => all.push(Self {
                ruled_out: true,
                ruling: Ruling::Idle,
                answer: Some(seen.unwrap_or_else(|| self.seen(mutant))),
                ..self
            }),
        }
    }

    /// Both serve it, or neither does for ever.
    fn is_wrong(self) -> bool {
        let two = self.origin == Origin::Back && self.target == Target::Here;
        let none = self.origin == Origin::Gone && self.target != Target::Here;
        two || none
    }

    /// Whether a link that carries nothing any more, and agents that do, come to an end.
    fn is_settled_by_agents(self) -> bool {
        let mut world = Self {
            questions: 0,
            accepted: false,
            refused: false,
            ..self
        };
        for _ in 0..16 {
            let mut all = Vec::new();
            world.of_agent(Mutant::None, &mut all);
            if all.is_empty()
                && [Target::Arriving, Target::Coming, Target::Cleared].contains(&world.target)
            {
                world.of_link(Mutant::None, &mut all);
            }
            if all.is_empty() {
                world.of_origin(&mut all);
            }
            match all.pop() {
                Some(next) => {
                    world = Self {
                        questions: 0,
                        ..next
                    }
                }
                None => break,
            }
        }
        world.origin != Origin::Asked
    }
}

/// All worlds that can be, and those of them that are wrong.
fn search(mutant: Mutant) -> (BTreeSet<World>, usize) {
    let mut seen = BTreeSet::from([World::START]);
    let mut queue = VecDeque::from([World::START]);
    while let Some(world) = queue.pop_front() {
        for next in world.next(mutant) {
            if seen.insert(next) {
                queue.push_back(next);
            }
        }
    }
    let wrong = seen.iter().filter(|world| world.is_wrong()).count();
    (seen, wrong)
}

/// Whatever is lost, late or repeated, and whichever step comes first.
#[test]
fn a_connection_has_one_server_in_every_order() {
    let (seen, wrong) = search(Mutant::None);
    assert!(seen.len() > 100, "{} worlds", seen.len());
    assert_eq!(wrong, 0);
    let unsettled = seen.iter().find(|world| !world.is_settled_by_agents());
    assert_eq!(unsettled, None, "it stays open for ever");
}

#[test]
fn the_search_finds_what_is_done_wrong() {
    for mutant in [
        Mutant::LooksFirst,
        Mutant::LooksOnce,
        Mutant::NeverComing,
        Mutant::Forgets,
    ] {
        assert!(search(mutant).1 > 0, "{mutant:?}");
    }
}
