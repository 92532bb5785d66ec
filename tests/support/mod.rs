//! What tests against a real server share.
#![allow(dead_code, unused_imports, unreachable_pub)]

mod proxy;
mod redis_server;

pub use proxy::Proxy;
pub use redis_server::{RedisServer, free_port};
