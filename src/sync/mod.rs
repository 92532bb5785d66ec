//! The engine between the local tier and the store: all logic in `turn`, all I/O in `driver`.

mod answers;
mod bucket;
mod driver;
mod link;
mod message;
#[cfg(test)]
mod tests;
mod turn;
mod waiter;

pub(crate) use driver::Driver;
pub(crate) use turn::Settings;
pub(crate) use waiter::{Answer, Ticket};
