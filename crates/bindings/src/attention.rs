//! Attention over the paged cache, over numpy arrays of float32 or of the bits of bfloat16 (uint16).

use numpy::{PyArray3, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2, PyReadwriteArray2, PyUntypedArrayMethods};
use paceline_kernels::{Attention, Cache, Element, Heads, Shape, takes_long_rows};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;

use crate::kernels::{Matrix, MatrixMut, mixed_types, require};

/// The pools of all layers, `[kv heads, slots, size]` each; no value pools where values are part of the keys.
enum Pools {
    Half(LayerPools<u16>),
    Single(LayerPools<f32>),
}

struct LayerPools<E> {
    keys: Vec<Py<PyArray3<E>>>,
    values: Vec<Py<PyArray3<E>>>,
}

#[derive(FromPyObject)]
enum PoolList<'py> {
    Half(Vec<Bound<'py, PyArray3<u16>>>),
    Single(Vec<Bound<'py, PyArray3<f32>>>),
}

/// Writes new keys and values into the pools and attends over them; rows of many queries are left to the caller.
#[pyclass(module = "paceline._core")]
pub(crate) struct PagedAttention {
    pools: Pools,
    attention: Attention,
}

#[pymethods]
impl PagedAttention {
    /// Takes the pools of every layer, which stay the caller's, and how many slots a block has.
    #[new]
    fn new(keys: PoolList<'_>, values: PoolList<'_>, block_size: usize) -> PyResult<Self> {
        let slots = match &keys {
            PoolList::Half(keys) => keys.first().map(|pool| pool.shape()[1]),
            PoolList::Single(keys) => keys.first().map(|pool| pool.shape()[1]),
        };
        let slots = slots.ok_or_else(|| PyValueError::new_err("a cache has one layer at least"))?;
        if block_size == 0 || !slots.is_multiple_of(block_size) {
            return Err(PyValueError::new_err(format!(
                "pools of {slots} slots do not divide into blocks of {block_size}"
            )));
        }
        let pools = match (keys, values) {
            (PoolList::Half(keys), PoolList::Half(values)) => Pools::Half(layer_pools(keys, values, slots)?),
            (PoolList::Half(keys), PoolList::Single(values)) if values.is_empty() => {
                Pools::Half(layer_pools(keys, Vec::new(), slots)?)
            }
            (PoolList::Single(keys), PoolList::Single(values)) => Pools::Single(layer_pools(keys, values, slots)?),
            (PoolList::Single(keys), PoolList::Half(values)) if values.is_empty() => {
                Pools::Single(layer_pools(keys, Vec::new(), slots)?)
            }
            _ => return Err(mixed_types()),
        };
        Ok(Self { pools, attention: Attention::new(slots / block_size, block_size) })
    }

    /// Whether rows of many queries are worth giving to it.
    #[getter]
    fn takes_long_rows(&self, py: Python<'_>) -> bool {
        let size = |pool: &Py<PyArray3<u16>>| pool.bind(py).shape()[2];
        match &self.pools {
            Pools::Half(LayerPools { keys, values }) => keys.first().is_some_and(|keys| {
                // A latent's values are most of its columns, and no other count is known here.
                let key_size = size(keys);
                takes_long_rows(key_size, values.first().map_or(key_size / 64 * 64, size))
            }),
            Pools::Single(_) => false,
        }
    }

    /// Takes the arrays of the next pass. Raises `ValueError` for one that does not fit the cache or the others.
    fn prepare(
        &mut self,
        query_start_loc: PyReadonlyArray1<'_, i32>,
        kv_lens: PyReadonlyArray1<'_, i32>,
        block_table: PyReadonlyArray2<'_, i32>,
        slots: PyReadonlyArray1<'_, i64>,
    ) -> PyResult<()> {
        let width = block_table.shape()[1];
        self.attention
            .rows_mut()
            .set(query_start_loc.as_slice()?, kv_lens.as_slice()?, block_table.as_slice()?, width, slots.as_slice()?)
            .map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// Writes the keys and values in `heads [tokens, (head_count + 2 * kv heads) * size]`, queries first, and attends in
    /// `layer` for every row of at most `query_len_max` queries; gives `output [tokens, head_count * size]`.
    #[expect(clippy::too_many_arguments, reason = "each is a tensor or a number of the layer")]
    fn attend(
        &mut self,
        py: Python<'_>,
        layer: usize,
        heads: Matrix<'_>,
        head_count: usize,
        scale: f32,
        window: usize,
        query_len_max: usize,
        output: MatrixMut<'_>,
    ) -> PyResult<()> {
        let pass = Pass { layer, head_count, scale, window, query_len_max };
        let Self { pools, attention } = self;
        match (pools, heads, output) {
            (Pools::Half(pools), Matrix::Half(heads), MatrixMut::Half(output)) => {
                pass.heads(py, pools, attention, &heads, output)
            }
            (Pools::Single(pools), Matrix::Single(heads), MatrixMut::Single(output)) => {
                pass.heads(py, pools, attention, &heads, output)
            }
            _ => Err(mixed_types()),
        }
    }

    /// Writes `latents [tokens, key size]` and attends for `queries [tokens, head_count * key size]`; a value is the
    /// first columns of its key. Gives `output [tokens, head_count * value size]`; see `attend` for the rest.
    #[expect(clippy::too_many_arguments, reason = "each is a tensor or a number of the layer")]
    fn attend_latent(
        &mut self,
        py: Python<'_>,
        layer: usize,
        queries: Matrix<'_>,
        latents: Matrix<'_>,
        head_count: usize,
        scale: f32,
        query_len_max: usize,
        output: MatrixMut<'_>,
    ) -> PyResult<()> {
        let pass = Pass { layer, head_count, scale, window: 0, query_len_max };
        let Self { pools, attention } = self;
        match (pools, queries, latents, output) {
            (Pools::Half(pools), Matrix::Half(queries), Matrix::Half(latents), MatrixMut::Half(output)) => {
                pass.latents(py, pools, attention, [&queries, &latents], output)
            }
            (Pools::Single(pools), Matrix::Single(queries), Matrix::Single(latents), MatrixMut::Single(output)) => {
                pass.latents(py, pools, attention, [&queries, &latents], output)
            }
            _ => Err(mixed_types()),
        }
    }
}

impl PagedAttention {
    /// Runs `work`, without Python's lock, with the pools of `layer`, whose heads `shape` says; the pass has `tokens`.
    pub(crate) fn with_layer(
        &mut self,
        py: Python<'_>,
        layer: usize,
        tokens: usize,
        shape: Shape,
        work: impl FnOnce(&mut Attention, Cache<'_>) + Send,
    ) -> PyResult<()> {
        let Self { pools: Pools::Half(pools), attention } = self else { return Err(mixed_types()) };
        let mut keys = pool(py, &pools.keys, layer)?.readwrite();
        let mut values = pool(py, &pools.values, layer)?.readwrite();
        require("tokens of the pass", attention.input_count(), tokens)?;
        require("cached heads", shape.kv_head_count, keys.shape()[0])?;
        require("columns of a key", shape.key_size, keys.shape()[2])?;
        require("columns of a value", shape.value_size, values.shape()[2])?;
        let cache = Cache { keys: keys.as_slice_mut()?, values: values.as_slice_mut()? };
        py.detach(|| work(attention, cache));
        Ok(())
    }
}

fn layer_pools<E: numpy::Element>(
    keys: Vec<Bound<'_, PyArray3<E>>>,
    values: Vec<Bound<'_, PyArray3<E>>>,
    slots: usize,
) -> PyResult<LayerPools<E>> {
    if !values.is_empty() {
        require("value pools", keys.len(), values.len())?;
    }
    for pool in keys.iter().chain(&values) {
        require("slots of a pool", slots, pool.shape()[1])?;
        if !pool.is_c_contiguous() {
            return Err(PyValueError::new_err("a pool is contiguous"));
        }
    }
    let own = |pools: Vec<Bound<'_, PyArray3<E>>>| pools.into_iter().map(Bound::unbind).collect();
    Ok(LayerPools { keys: own(keys), values: own(values) })
}

/// The numbers of one call.
struct Pass {
    layer: usize,
    head_count: usize,
    scale: f32,
    window: usize,
    query_len_max: usize,
}

impl Pass {
    fn heads<E: Element + numpy::Element>(
        &self,
        py: Python<'_>,
        pools: &LayerPools<E>,
        attention: &mut Attention,
        heads: &PyReadonlyArray2<'_, E>,
        mut output: PyReadwriteArray2<'_, E>,
    ) -> PyResult<()> {
        let mut keys = pool(py, &pools.keys, self.layer)?.readwrite();
        let mut values = pool(py, &pools.values, self.layer)?.readwrite();
        let (kv_head_count, size) = (keys.shape()[0], keys.shape()[2]);
        require("columns of a value", size, values.shape()[2])?;
        require("columns of heads", (self.head_count + 2 * kv_head_count) * size, heads.shape()[1])?;
        self.check(attention, heads.shape()[0], kv_head_count, self.head_count * size, &output)?;
        let (data, output) = (heads.as_slice()?, output.as_slice_mut()?);
        let (keys, values) = (keys.as_slice_mut()?, values.as_slice_mut()?);
        let shape = Shape { head_count: self.head_count, kv_head_count, key_size: size, value_size: size };
        py.detach(|| {
            attention.attend_heads(shape, data, keys, values, self.scale, self.window, self.query_len_max, output);
        });
        Ok(())
    }

    fn latents<E: Element + numpy::Element>(
        &self,
        py: Python<'_>,
        pools: &LayerPools<E>,
        attention: &mut Attention,
        [queries, latents]: [&PyReadonlyArray2<'_, E>; 2],
        mut output: PyReadwriteArray2<'_, E>,
    ) -> PyResult<()> {
        let mut keys = pool(py, &pools.keys, self.layer)?.readwrite();
        let key_size = keys.shape()[2];
        require("cached heads of a latent", 1, keys.shape()[0])?;
        require("columns of latents", key_size, latents.shape()[1])?;
        require("columns of queries", self.head_count * key_size, queries.shape()[1])?;
        require("rows of latents", queries.shape()[0], latents.shape()[0])?;
        let output_width = output.shape()[1];
        self.check(attention, queries.shape()[0], 1, output_width, &output)?;
        let value_size = output_width / self.head_count;
        if value_size * self.head_count != output_width || value_size > key_size {
            let given = format!("{output_width} columns for {} heads of keys of {key_size}", self.head_count);
            return Err(PyValueError::new_err(format!("output of latent attention: {given}")));
        }
        let (queries, latents, output) = (queries.as_slice()?, latents.as_slice()?, output.as_slice_mut()?);
        let keys = keys.as_slice_mut()?;
        let shape = Shape { head_count: self.head_count, kv_head_count: 1, key_size, value_size };
        py.detach(|| {
            attention.store(keys, 1, key_size, Heads { data: latents, row_width: key_size, first: 0 });
            let queries = Heads { data: queries, row_width: self.head_count * key_size, first: 0 };
            attention.attend(shape, queries, keys, None, self.scale, 0, self.query_len_max, output);
        });
        Ok(())
    }

    /// What both kinds ask of their arrays.
    fn check<E: numpy::Element>(
        &self,
        attention: &Attention,
        tokens: usize,
        kv_head_count: usize,
        output_width: usize,
        output: &PyReadwriteArray2<'_, E>,
    ) -> PyResult<()> {
        require("tokens of the pass", attention.input_count(), tokens)?;
        require("rows of the output", tokens, output.shape()[0])?;
        require("columns of the output", output_width, output.shape()[1])?;
        if self.head_count == 0 || !self.head_count.is_multiple_of(kv_head_count) {
            let heads = self.head_count;
            return Err(PyValueError::new_err(format!(
                "{heads} query heads do not share {kv_head_count} cached ones evenly"
            )));
        }
        Ok(())
    }
}

fn pool<'a, 'py, E: numpy::Element>(
    py: Python<'py>,
    pools: &'a [Py<PyArray3<E>>],
    layer: usize,
) -> PyResult<&'a Bound<'py, PyArray3<E>>> {
    let pool = pools
        .get(layer)
        .ok_or_else(|| PyIndexError::new_err(format!("the cache has {} layers, not {layer}", pools.len())))?;
    Ok(pool.bind(py))
}
