//! Calls and messages of the SDK.

pub(crate) mod client;
pub(crate) mod client_receives;
pub(crate) mod client_sends;
