//! What a fault waits for: a standby that could take over at that moment.

use std::io;

use anyhow::Result;

use super::view::View;
use crate::cluster::Cluster;
use crate::host::Host;

/// Holds a fault back, and says why.
#[derive(Debug, Default)]
pub(super) struct Gate {
    waits_for: Option<String>,
}

impl Gate {
    /// Whether `owner` may fail now; without a cluster it may at any time.
    pub(super) fn is_open(
        &mut self,
        cluster: Option<&Cluster<'_>>,
        owner: Host,
        view: &mut View,
    ) -> Result<bool> {
        let why = match cluster {
            Some(cluster) => cluster.why_unready(owner)?,
            None => None,
        };
        Ok(self.pass(why, view)?)
    }

    /// Whether nothing is in the way; says each new reason once.
    fn pass(&mut self, why: Option<String>, view: &mut View) -> io::Result<bool> {
        if let Some(why) = &why
            && self.waits_for.as_ref() != Some(why)
        {
            view.event(&format!("the failure waits: {why}"))?;
        }
        self.waits_for = why;
        Ok(self.waits_for.is_none())
    }

    /// The client has come to its end. Says so if the fault still waits.
    pub(super) fn close(&self, view: &mut View) -> io::Result<()> {
        match &self.waits_for {
            Some(why) => view.event(&format!("no failure is shown: {why}, until the end")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Screen(Arc<Mutex<Vec<u8>>>);

    impl Screen {
        fn count(&self, text: &str) -> usize {
            let bytes = self.0.lock().expect("nobody panics").clone();
            let said = String::from_utf8(bytes).expect("it is text");
            said.matches(text).count()
        }
    }

    impl Write for Screen {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("nobody panics").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What used to be shown: a crash whose standby had just left.
    #[test]
    fn a_failure_waits_until_the_standby_is_in_sync() -> io::Result<()> {
        let screen = Screen::default();
        let mut view = View::new(Box::new(screen.clone()), false);
        let mut gate = Gate::default();
        let away = || Some("b is not in sync".to_owned());
        assert!(!gate.pass(away(), &mut view)?);
        assert!(!gate.pass(away(), &mut view)?);
        assert_eq!(screen.count("b is not in sync"), 1, "it is said once");
        assert!(gate.pass(None, &mut view)?);
        gate.close(&mut view)?;
        assert_eq!(screen.count("no failure is shown"), 0);
        assert!(!gate.pass(away(), &mut view)?);
        gate.close(&mut view)?;
        assert_eq!(screen.count("no failure is shown"), 1);
        Ok(())
    }
}
