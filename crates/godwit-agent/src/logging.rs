//! Where the agent's words go: standard error, one line each.

use tracing_subscriber::EnvFilter;

/// The variable that sets what is logged, as in `GODWIT_LOG=godwit_agent=debug`.
pub const VARIABLE: &str = "GODWIT_LOG";

/// Starts logging; does nothing if it has been started.
pub fn init() {
    let filter = EnvFilter::try_from_env(VARIABLE).unwrap_or_else(|_| EnvFilter::new("info"));
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false)
        // A log that can't be written, on a full disk, must not be reported on
        // the same standard error: that panics, and would end the agent.
        .log_internal_errors(false)
        .try_init();
}

/// Makes a panic on any thread end the process.
///
/// An agent that has lost a thread would hold a place that a whole one could
/// fill: its peers must see it die, and its supervisor start it anew.
pub fn die_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
}
