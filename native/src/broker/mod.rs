//! Requests to records and answers, and stored records to messages of an answer.

pub(crate) mod ack;
pub(crate) mod classic_send;
pub(crate) mod send_codec;
pub(crate) mod send_plan;
pub(crate) mod sent;
pub(crate) mod wire_messages;
