//! A file per subcommand: its arguments, and what it does with them.

pub(crate) mod agent;
pub(crate) mod check;
pub(crate) mod datapath_load;
pub(crate) mod detach;
pub(crate) mod director;
pub(crate) mod director_load;
pub(crate) mod doctor;
pub(crate) mod events;
pub(crate) mod flows;
pub(crate) mod hand_over;
pub(crate) mod lab;
pub(crate) mod pki;
pub(crate) mod reload;
pub(crate) mod status;
pub(crate) mod stonith_helper;
pub(crate) mod witness;
