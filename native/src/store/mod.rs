//! Records and queue units in the formats of the store.

pub(crate) mod index_entries;
pub(crate) mod log_reader;
pub(crate) mod log_units;
pub(crate) mod queue_read;
pub(crate) mod record_layout;
pub(crate) mod stored_record;
