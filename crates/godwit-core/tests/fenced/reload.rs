//! A node takes another list of backups, in order.

use godwit_core::fitness::{Consequence, FactId};

use super::*;

/// How the file of a node differs from the first one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum File {
    /// It has no fence.
    Unfenced,
    /// Leases are as before.
    Reworded,
}

impl World {
    /// What the file of a node says of the share, if it does.
    pub(super) fn shares(
        &self,
        side: usize,
        resume: Option<Resume>,
    ) -> impl Iterator<Item = ShareConfig> {
        let share = ShareConfig {
            id: SHARE,
            name: "web".into(),
            primary: name(A),
            mates: Vec::new(),
            backups: vec![name(self.sides[side].backup)],
            fencing: match self.sides[side].file {
                Some(File::Unfenced) => Fencing::None,
                Some(File::Reworded) | None => self.fencing,
            },
            server_lost_hold: 2 * TERMS.term,
            policy: FlowPolicy::default(),
            flap_limit: self.flap_limit,
            failback: self.failback,
            paths: 0,
            moves_within: None,
            resume,
        };
        (!self.sides[side].lacks).then_some(share).into_iter()
    }

    /// A cluster that runs, and whose files do not name the share yet.
    pub(crate) fn without(fencing: Fencing, nodes: usize) -> Self {
        let mut world = Self::dark(fencing, nodes);
        world.keeps = true;
        for side in 0..nodes {
            world.sides[side].lacks = true;
            world.boot(side);
        }
        world.run(3_000);
        world
    }

    /// A node reloads its file, which names the share now.
    pub(crate) fn add(&mut self, side: usize) {
        self.end_life(side);
        self.sides[side].lacks = false;
        self.run(20);
        self.start(side, None);
    }

    /// What an agent does that reloads a file in which another node is the backup.
    pub(crate) fn reload(&mut self, side: usize, backup: usize) {
        let leaves = side != A && side != backup;
        if leaves {
            self.leave(side);
        }
        let begun = self.end_life(side);
        self.sides[side].backup = backup;
        if leaves {
            // Twins of what is no longer in the file are ended.
            self.sides[side].entry = NOTHING;
        }
        self.run(20);
        self.resume(side);
        let node = self.sides[side].node.take();
        self.sides[side].node = node.map(|node| node.beginning(&begun));
    }

    /// A node reloads its file, which is that one now.
    pub(crate) fn take_file(&mut self, side: usize, file: Option<File>) {
        self.sides[side].file = file;
        let backup = self.sides[side].backup;
        self.reload(side, backup);
    }

    /// Of what a node's file says.
    pub(super) fn digest(&self, side: usize) -> [u8; 32] {
        let file = match self.sides[side].file {
            None => 8,
            Some(File::Unfenced) => 9,
            Some(File::Reworded) => 10,
        };
        [file; 32]
    }

    /// The last words of a life before another one in the same process, and what it is told.
    fn end_life(&mut self, side: usize) -> Vec<ShareId> {
        self.input(side, |node, now| {
            node.handle_command(Command::Prepare(GoodbyeReason::Restart), now);
        });
        self.run(3);
        let begun = self.sides[side].node.as_ref().map(Node::begun);
        self.input(side, |node, now| {
            node.handle_command(Command::Goodbye(GoodbyeReason::Restart), now);
        });
        self.run(2);
        let now = self.now(side);
        let bound = self.sides[side].node.as_ref().map(|it| it.bound_until(now));
        self.kill_agent(side);
        self.sides[side].quiet_until = bound.unwrap_or(now);
        begun.unwrap_or_default()
    }

    /// Who has the other part of a stay: the data path knows where that one is.
    pub(super) fn found_on_link(&self, side: usize, entry: Entry) -> Option<NodeName> {
        let of_stay = |other: &usize| {
            let it = self.sides[*other].entry;
            *other != side && (it.epoch, it.generation) == (entry.epoch, entry.generation)
        };
        let mut others = (0..self.sides.len()).filter(|_| self.finds);
        others.find(of_stay).map(name)
    }

    /// Twins that end with the file leave the set before they do.
    fn leave(&mut self, side: usize) {
        let fact = FactId {
            name: "leaves_the_file".to_owned(),
            share: Some(SHARE),
        };
        self.input(side, |node, now| {
            node.handle_fact(fact, Some(Consequence::NoTwins), now);
        });
        for _ in 0..1_000 {
            if self.sides[side].entry.role != Role::Shadow {
                return;
            }
            self.step();
        }
    }
}
