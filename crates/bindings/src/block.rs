//! The two halves of a decoder layer over arrays of the bits of bfloat16 (uint16), each in one call.

use numpy::{PyArray1, PyArrayMethods, PyReadonlyArray2, PyReadwriteArray2, PyUntypedArrayMethods};
use paceline_kernels::{GatedMlp, HeadNorm, Norm, Rotation, Scratch, SelfAttention, Shape, Spent};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::attention::PagedAttention;
use crate::kernels::require;
use crate::linear::LinearWeight;

struct OwnedNorm {
    weight: Py<PyArray1<u16>>,
    epsilon: f32,
}

/// Milliseconds by kind of work since the block was made: products, attention, norms, rotation, activation.
fn milliseconds(spent: Spent) -> [f64; 5] {
    [spent.products, spent.attention, spent.norms, spent.rotation, spent.activation]
        .map(|duration| duration.as_secs_f64() * 1e3)
}

/// The residual stream, what is added to it, and where the result goes, all of one shape.
struct Stream<'py> {
    x: PyReadwriteArray2<'py, u16>,
    added: Option<PyReadonlyArray2<'py, u16>>,
    output: PyReadwriteArray2<'py, u16>,
}

impl Stream<'_> {
    fn check(&self, width: usize) -> PyResult<()> {
        let rows = self.x.shape()[0];
        require("columns of x", width, self.x.shape()[1])?;
        require("rows of the output", rows, self.output.shape()[0])?;
        require("columns of the output", width, self.output.shape()[1])?;
        if let Some(added) = &self.added {
            require("rows of what is added", rows, added.shape()[0])?;
            require("columns of what is added", width, added.shape()[1])?;
        }
        Ok(())
    }
}

/// Norm, gates, what they gate, and the product behind them.
#[pyclass(module = "paceline._core")]
pub(crate) struct FeedForwardBlock {
    norm: OwnedNorm,
    gate_up: Py<LinearWeight>,
    down: Py<LinearWeight>,
    scratch: Scratch,
}

#[pymethods]
impl FeedForwardBlock {
    #[new]
    fn new(
        norm: Bound<'_, PyArray1<u16>>,
        epsilon: f32,
        gate_up: Bound<'_, LinearWeight>,
        down: Bound<'_, LinearWeight>,
    ) -> PyResult<Self> {
        let ((wide, width), (outputs, inner)) = (gate_up.get().shape(), down.get().shape());
        require("columns of the norm", width, norm.len())?;
        require("outputs of gate and up", 2 * inner, wide)?;
        require("outputs of down", width, outputs)?;
        let norm = OwnedNorm { weight: norm.unbind(), epsilon };
        Ok(Self { norm, gate_up: gate_up.unbind(), down: down.unbind(), scratch: Scratch::default() })
    }

    /// See the stub.
    fn __call__(
        &mut self,
        py: Python<'_>,
        x: PyReadwriteArray2<'_, u16>,
        added: Option<PyReadonlyArray2<'_, u16>>,
        output: PyReadwriteArray2<'_, u16>,
    ) -> PyResult<()> {
        let mut stream = Stream { x, added, output };
        stream.check(self.gate_up.get().shape().1)?;
        let added = stream.added.as_ref().map(|added| added.as_slice()).transpose()?;
        self.run(py, stream.x.as_slice_mut()?, added, stream.output.as_slice_mut()?)
    }

    /// Milliseconds spent so far on products, attention, norms, rotation and activation.
    #[getter]
    fn spent_ms(&self) -> [f64; 5] {
        milliseconds(self.scratch.spent)
    }
}

impl FeedForwardBlock {
    fn run(&mut self, py: Python<'_>, x: &mut [u16], added: Option<&[u16]>, output: &mut [u16]) -> PyResult<()> {
        let weight = self.norm.weight.bind(py).readonly();
        let (gate_up, down) = (self.gate_up.get().read(py), self.down.get().read(py));
        let (gate_up_parts, down_parts) = (gate_up.parts()?, down.parts()?);
        let block = GatedMlp {
            norm: Norm { weight: weight.as_slice()?, epsilon: self.norm.epsilon },
            gate_up: gate_up.weight(&gate_up_parts)?,
            down: down.weight(&down_parts)?,
        };
        let scratch = &mut self.scratch;
        py.detach(|| block.apply(x, added, scratch, output));
        Ok(())
    }
}

/// Cosines and signed sines of the tokens of a pass.
#[derive(Clone, Copy)]
struct Angles<'a> {
    rotation: Rotation<'a, u16>,
    tokens: usize,
}

impl<'a> Angles<'a> {
    fn of(tokens: usize, cos: &'a PyReadonlyArray2<'_, u16>, sin: &'a PyReadonlyArray2<'_, u16>) -> PyResult<Self> {
        require("rows of cos", tokens, cos.shape()[0])?;
        require("rows of sin", tokens, sin.shape()[0])?;
        require("columns of sin", cos.shape()[1], sin.shape()[1])?;
        Ok(Self { rotation: Rotation { cos: cos.as_slice()?, sin: sin.as_slice()?, width: cos.shape()[1] }, tokens })
    }
}

/// Norm, the product to queries, keys and values, rotation, attention, and the product behind it.
#[pyclass(module = "paceline._core")]
pub(crate) struct AttentionBlock {
    layer: usize,
    shape: Shape,
    window: usize,
    norm: OwnedNorm,
    head_norm: Option<OwnedNorm>,
    qkv: Py<LinearWeight>,
    output: Py<LinearWeight>,
    scratch: Scratch,
}

#[pymethods]
impl AttentionBlock {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "each is a tensor or a number of the layer")]
    fn new(
        layer: usize,
        head_count: usize,
        kv_head_count: usize,
        window: usize,
        norm: Bound<'_, PyArray1<u16>>,
        epsilon: f32,
        qkv: Bound<'_, LinearWeight>,
        output: Bound<'_, LinearWeight>,
        head_norm: Option<(Bound<'_, PyArray1<u16>>, f32)>,
    ) -> PyResult<Self> {
        let ((columns, width), (outputs, attended)) = (qkv.get().shape(), output.get().shape());
        if head_count == 0 || kv_head_count == 0 || !attended.is_multiple_of(head_count) {
            let given = format!("{attended} inputs of output for {head_count} heads, {kv_head_count} of them cached");
            return Err(PyValueError::new_err(given));
        }
        let size = attended / head_count;
        require("columns of the norm", width, norm.len())?;
        require("outputs of qkv", (head_count + 2 * kv_head_count) * size, columns)?;
        require("outputs of output", width, outputs)?;
        if let Some((weight, _)) = &head_norm {
            require("factors of the heads' norm", (head_count + kv_head_count) * size, weight.len())?;
        }
        Ok(Self {
            layer,
            shape: Shape { head_count, kv_head_count, key_size: size, value_size: size },
            window,
            norm: OwnedNorm { weight: norm.unbind(), epsilon },
            head_norm: head_norm.map(|(weight, epsilon)| OwnedNorm { weight: weight.unbind(), epsilon }),
            qkv: qkv.unbind(),
            output: output.unbind(),
            scratch: Scratch::default(),
        })
    }

    /// See the stub.
    #[expect(clippy::too_many_arguments, reason = "each is a tensor of the pass")]
    fn __call__(
        &mut self,
        py: Python<'_>,
        attention: &mut PagedAttention,
        x: PyReadwriteArray2<'_, u16>,
        added: Option<PyReadonlyArray2<'_, u16>>,
        cos: PyReadonlyArray2<'_, u16>,
        sin: PyReadonlyArray2<'_, u16>,
        output: PyReadwriteArray2<'_, u16>,
    ) -> PyResult<()> {
        let mut stream = Stream { x, added, output };
        stream.check(self.qkv.get().shape().1)?;
        let angles = Angles::of(stream.x.shape()[0], &cos, &sin)?;
        let added = stream.added.as_ref().map(|added| added.as_slice()).transpose()?;
        self.run(py, attention, angles, stream.x.as_slice_mut()?, added, stream.output.as_slice_mut()?)
    }

    /// Milliseconds spent so far on products, attention, norms, rotation and activation.
    #[getter]
    fn spent_ms(&self) -> [f64; 5] {
        milliseconds(self.scratch.spent)
    }
}

impl AttentionBlock {
    fn run(
        &mut self,
        py: Python<'_>,
        attention: &mut PagedAttention,
        angles: Angles<'_>,
        x: &mut [u16],
        added: Option<&[u16]>,
        output: &mut [u16],
    ) -> PyResult<()> {
        let Angles { rotation, tokens } = angles;
        if rotation.width == 0 || rotation.width % 2 == 1 || rotation.width > self.shape.key_size {
            let given = format!("{} rotated columns of heads of {}", rotation.width, self.shape.key_size);
            return Err(PyValueError::new_err(given));
        }
        let weight = self.norm.weight.bind(py).readonly();
        let head_weight = self.head_norm.as_ref().map(|norm| (norm.weight.bind(py).readonly(), norm.epsilon));
        let head_norm = match &head_weight {
            Some((weight, epsilon)) => Some(HeadNorm { weight: weight.as_slice()?, epsilon: *epsilon }),
            None => None,
        };
        let (qkv, behind) = (self.qkv.get().read(py), self.output.get().read(py));
        let (qkv_parts, behind_parts) = (qkv.parts()?, behind.parts()?);
        let block = SelfAttention {
            norm: Norm { weight: weight.as_slice()?, epsilon: self.norm.epsilon },
            qkv: qkv.weight(&qkv_parts)?,
            rotation,
            head_norm,
            shape: self.shape,
            window: self.window,
            output: behind.weight(&behind_parts)?,
        };
        let scratch = &mut self.scratch;
        attention.with_layer(py, self.layer, tokens, self.shape, |attention, cache| {
            block.apply(x, added, attention, cache, scratch, output);
        })
    }
}

/// Layers one after another, of one width.
#[pyclass(module = "paceline._core")]
pub(crate) struct LayerStack {
    layers: Vec<(Py<AttentionBlock>, Py<FeedForwardBlock>)>,
    width: usize,
    attended: Vec<u16>,
    fed: Vec<u16>,
}

#[pymethods]
impl LayerStack {
    #[new]
    fn new(py: Python<'_>, layers: Vec<(Py<AttentionBlock>, Py<FeedForwardBlock>)>) -> PyResult<Self> {
        let width = |layer: &(Py<AttentionBlock>, Py<FeedForwardBlock>)| {
            (layer.0.borrow(py).qkv.get().shape().1, layer.1.borrow(py).gate_up.get().shape().1)
        };
        let first = layers.first().ok_or_else(|| PyValueError::new_err("a stack has one layer at least"))?;
        let expected = width(first).0;
        for layer in &layers {
            require("width of a layer's attention", expected, width(layer).0)?;
            require("width of a layer's feed-forward block", expected, width(layer).1)?;
        }
        Ok(Self { layers, width: expected, attended: Vec::new(), fed: Vec::new() })
    }

    /// See the stub.
    fn __call__(
        &mut self,
        py: Python<'_>,
        attention: &mut PagedAttention,
        x: PyReadwriteArray2<'_, u16>,
        cos: PyReadonlyArray2<'_, u16>,
        sin: PyReadonlyArray2<'_, u16>,
        output: PyReadwriteArray2<'_, u16>,
    ) -> PyResult<()> {
        let mut stream = Stream { x, added: None, output };
        stream.check(self.width)?;
        let angles = Angles::of(stream.x.shape()[0], &cos, &sin)?;
        let (x, output) = (stream.x.as_slice_mut()?, stream.output.as_slice_mut()?);
        let Self { layers, attended, fed, .. } = self;
        attended.resize(x.len(), 0);
        fed.resize(x.len(), 0);
        for (index, (attends, feeds)) in layers.iter().enumerate() {
            let added = (index > 0).then_some(&fed[..]);
            attends.borrow_mut(py).run(py, attention, angles, x, added, attended)?;
            feeds.borrow_mut(py).run(py, x, Some(attended), fed)?;
        }
        output.copy_from_slice(fed);
        Ok(())
    }
}
