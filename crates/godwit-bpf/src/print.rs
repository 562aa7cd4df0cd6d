//! What libbpf has to say.

use std::sync::OnceLock;

use libbpf_rs::{PrintLevel, set_print};

static SAY: OnceLock<fn(&str)> = OnceLock::new();

/// Hands what libbpf warns of to `say`. Without this it writes to standard error itself,
/// and waits there if nobody reads. Only the first caller is heeded.
pub fn report_with(say: fn(&str)) {
    let _ = SAY.set(say);
    set_print(Some((PrintLevel::Warn, pass_on)));
}

fn pass_on(_: PrintLevel, line: String) {
    if let Some(say) = SAY.get() {
        say(&line);
    }
}
