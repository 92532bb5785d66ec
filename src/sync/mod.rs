//! The engine between the local tier and the store: all logic in `turn`, all I/O in `driver`.

mod ahead;
mod answers;
mod books;
mod bucket;
mod dispatch;
mod driver;
mod edges;
mod link;
mod message;
mod orders;
mod plain;
mod rules;
mod turn;
mod visit;
mod waiter;
mod window;

pub(crate) use driver::Driver;
pub(crate) use orders::Order;
pub(crate) use plain::Ask;
// A world of virtual time drives engines without the driver.
pub(crate) use turn::Settings;
pub(crate) use waiter::{Answer, Ticket};
#[cfg(any(test, feature = "sim"))]
pub(crate) use {
    message::{Effect, Input},
    turn::Engine,
    waiter::pair,
};
