//! Policies: programs of the user's own.

use std::io;

use godwit_bpf::Policy;

use crate::config::{Config, ProgramConfig};
use crate::driver::InstallError;
use crate::files;
use crate::sentence::whole;

/// Whether the programs of the user's own can be read, and are such. What the kernel thinks of
/// them shows when they are loaded.
///
/// # Errors
/// Why the first is none, and whether that is only because this user may not read it.
pub(crate) fn judge_programs(config: &Config) -> Result<(), (String, bool)> {
    let denied = io::ErrorKind::PermissionDenied;
    let policies = policies(config).map_err(|error| {
        let is_denied =
            matches!(&error, InstallError::Policy { source, .. } if source.kind() == denied);
        (whole(&error), is_denied)
    })?;
    let judged: Result<(), _> = policies.iter().try_for_each(Policy::judge);
    judged.map_err(|error| (whole(&error), false))
}

/// The programs of the user's own, in the order of their numbers.
pub(crate) fn policies(config: &Config) -> Result<Vec<Policy>, InstallError> {
    let programs = config.programs().into_iter();
    let policies = programs.map(|program| match program {
        ProgramConfig::BuiltIn(name) => {
            Ok(Policy::built_in(name).expect("the file was checked for that"))
        }
        ProgramConfig::File(path) => match files::read(path) {
            Ok(object) => Ok(Policy::new(&path.to_string_lossy(), object)),
            Err(source) => Err(InstallError::Policy {
                path: path.clone(),
                source,
            }),
        },
    });
    policies.collect()
}
