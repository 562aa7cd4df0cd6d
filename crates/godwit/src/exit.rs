//! Exit codes: 0 done, 1 failed, 2 usage or configuration, 3 refused with a reason.

use std::process::ExitCode;

use godwit_agent::AgentError;
use godwit_agent::config::ConfigError;
use godwit_agent::control::{ClientError, FindError, PlaceError};
use godwit_agent::edge::StartError;

/// Something that should have been done and was not.
pub(crate) const FAILED: u8 = 1;

/// The request itself is wrong.
pub(crate) const USAGE: u8 = 2;

/// The request is understood and declined.
pub(crate) const REFUSED: u8 = 3;

/// The code that belongs to an error, by what caused it.
pub(crate) fn code_of(error: &anyhow::Error) -> ExitCode {
    let code = if let Some(AgentError::Start(error)) = error.downcast_ref() {
        of_start(error)
    } else if error.is::<ConfigError>()
        || matches!(error.downcast_ref(), Some(FindError::Several { .. }))
    {
        USAGE
    } else if let Some(ClientError::Refused(_)) = error.downcast_ref() {
        REFUSED
    } else {
        FAILED
    };
    ExitCode::from(code)
}

fn of_start(error: &StartError) -> u8 {
    if matches!(error, StartError::Config(_) | StartError::OtherRole { .. }) {
        USAGE
    } else if matches!(error, StartError::Place(PlaceError::Taken { .. })) {
        REFUSED
    } else {
        FAILED
    }
}
