//! How gRPC calls come in and answers go out: the server, its connections, streams and limits.

pub(crate) mod authority;
pub(crate) mod body;
pub(crate) mod budget;
pub(crate) mod call;
pub(crate) mod durations;
pub(crate) mod frame;
pub(crate) mod inbox;
pub(crate) mod metadata;
pub(crate) mod newcomers;
pub(crate) mod options;
pub(crate) mod requests;
pub(crate) mod server;
pub(crate) mod service;
pub(crate) mod status;
pub(crate) mod tls;
pub(crate) mod turns;
