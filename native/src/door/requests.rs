//! The requests of calls that Python takes together, without a Python object for each.

use bytes::Bytes;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Encoded requests: a sequence of bytes in Python.
#[pyclass(frozen, sequence, module = "cometmq_native")]
pub struct Requests(pub Vec<Bytes>);

#[pymethods]
impl Requests {
    #[new]
    fn new(requests: Vec<Vec<u8>>) -> Self {
        Self(requests.into_iter().map(Bytes::from).collect())
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, at: usize) -> PyResult<Bound<'py, PyBytes>> {
        let request = self.0.get(at).ok_or_else(|| PyIndexError::new_err(at))?;
        Ok(PyBytes::new(py, request))
    }
}
