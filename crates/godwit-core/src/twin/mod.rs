//! A twin and its owner: how far one may run ahead of the other, who lags, whose answers
//! differ.

pub mod compare;
pub mod lag;
pub mod leash;
