//! A node takes another list of backups, in order.

use godwit_core::fitness::{Consequence, FactId};

use super::*;

impl World {
    /// What an agent does that reloads a file in which another node is the backup.
    pub(crate) fn reload(&mut self, side: usize, backup: usize) {
        let leaves = side != A && side != backup;
        if leaves {
            self.leave(side);
        }
        self.input(side, |node, now| {
            node.handle_command(Command::Prepare(GoodbyeReason::Restart), now);
        });
        self.run(3);
        self.input(side, |node, now| {
            node.handle_command(Command::Goodbye(GoodbyeReason::Restart), now);
        });
        self.run(2);
        self.kill_agent(side);
        self.sides[side].backup = backup;
        if leaves {
            // Twins of what is no longer in the file are ended.
            self.sides[side].entry = NOTHING;
        }
        self.run(20);
        self.resume(side);
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
