//! Protobuf's wire format and digests.

pub(crate) mod md5;
pub(crate) mod protobuf;
pub(crate) mod wire_fields;
