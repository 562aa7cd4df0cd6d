//! `godwit-lab app`: servers and clients that the lab runs in its namespaces.
//! Not for people; its arguments may change with every version.

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Handed on as they are.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<bool> {
    crate::apps::command::run(&args.args)?;
    Ok(true)
}
