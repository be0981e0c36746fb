//! LSTM layers, unrolled.

use forge_ir::{BinaryOp, Dim, UnaryOp, Value};

use super::super::lower::{Call, Lowered, Refusal, fixed};

/// Longer sequences give graphs that no one wants to compile.
const MAX_STEPS: i64 = 256;

/// One direction's parameters, as the steps use them.
struct Cell {
    /// `[I, 4H]`
    input: Value,
    /// `[H, 4H]`
    recurrent: Value,
    /// `[4H]`, both biases added.
    bias: Option<Value>,
    hidden: i64,
}

/// X: [T, B, I], W: [D, 4H, I], R: [D, 4H, H], B?: [D, 8H], lengths?: [B], h0?, c0?: [D, B, H]
/// -> Y: [T, D, B, H], Y_h, Y_c: [D, B, H]. Gates are stored in the order input, output, forget, cell.
pub(super) fn lstm(call: &mut Call<'_, '_>) -> Lowered {
    let hidden = call.attributes.int("hidden_size")?.ok_or_else(|| Refusal::invalid("hidden_size is missing"))?;
    let direction = call.attributes.string_or("direction", "forward")?;
    let reversed: &[bool] = match direction.as_str() {
        "forward" => &[false],
        "reverse" => &[true],
        "bidirectional" => &[false, true],
        other => return Err(Refusal::invalid(format!("direction '{other}' does not exist"))),
    };
    let help = "export the layer unrolled, or leave it to PyTorch";
    let unsupported = |what: &str| Err(Refusal::unsupported(format!("{what} is not supported"), help));
    if call.attributes.flag("layout")? {
        return unsupported("layout=1");
    }
    if call.attributes.flag("input_forget")? || call.attributes.has("clip") {
        return unsupported("a coupled or clipped cell");
    }
    for name in ["activations", "activation_alpha", "activation_beta"] {
        if call.attributes.has(name) && !default_activations(call, name)? {
            return unsupported("an activation other than Sigmoid, Tanh, Tanh");
        }
    }
    if call.has_input(7) {
        return unsupported("its input P (peepholes)");
    }
    let (x, w, r) = (call.input(0)?, call.input(1)?, call.input(2)?);
    let shape = call.shape(x);
    let [steps, batch, features] = shape.as_slice() else {
        return Err(Refusal::invalid(format!("its operand {} does not have 3 axes", call.ty(x))));
    };
    let steps = fixed(steps, "the sequence length of a recurrent layer")?;
    if !(1..=MAX_STEPS).contains(&steps) {
        return Err(Refusal::unsupported(format!("a sequence of {steps} steps is too long to unroll"), help));
    }
    if call.has_input(4) {
        let lengths = call.constant(4)?.and_then(|l| l.to_i64());
        if lengths.is_none_or(|l| l.iter().any(|l| *l != steps)) {
            return unsupported("its input sequence_lens, with sequences of different lengths,");
        }
    }
    let (mut hs, mut cs, mut ys) = (Vec::new(), Vec::new(), Vec::new());
    for (direction, reversed) in reversed.iter().enumerate() {
        let cell = cell(call, direction, w, r, features, hidden)?;
        let mut state = [initial(call, 5, direction, batch, hidden)?, initial(call, 6, direction, batch, hidden)?];
        let projected = call.matmul(x, cell.input)?;
        let mut outputs = Vec::new();
        for step in 0..steps {
            let at = if *reversed { steps - 1 - step } else { step };
            let now = call.slice_axis(projected, 0, Dim::from(at), Dim::from(1))?;
            let now = call.reshape(now, vec![batch.clone(), Dim::from(4 * hidden)])?;
            state = advance(call, &cell, now, state)?;
            // [1, 1, B, H]
            let row = vec![Dim::from(1), Dim::from(1), batch.clone(), Dim::from(hidden)];
            outputs.push(call.reshape(state[0], row)?);
        }
        if *reversed {
            outputs.reverse();
        }
        ys.push(call.concat(&outputs, 0)?);
        let last = vec![Dim::from(1), batch.clone(), Dim::from(hidden)];
        hs.push(call.reshape(state[0], last.clone())?);
        cs.push(call.reshape(state[1], last)?);
    }
    let y = call.concat(&ys, 1)?;
    call.output(0, y)?;
    let h = call.concat(&hs, 0)?;
    call.output(1, h)?;
    let c = call.concat(&cs, 0)?;
    call.output(2, c)
}

fn default_activations(call: &Call<'_, '_>, name: &str) -> Result<bool, Refusal> {
    let Some(attribute) = call.node.attribute.iter().find(|a| a.name == name) else { return Ok(true) };
    let expected: [&[u8]; 3] = [b"sigmoid", b"tanh", b"tanh"];
    let same = attribute.strings.iter().zip(expected.iter().cycle()).all(|(s, e)| s.eq_ignore_ascii_case(e));
    Ok(same && attribute.floats.is_empty())
}

fn cell(
    call: &mut Call<'_, '_>,
    direction: usize,
    w: Value,
    r: Value,
    features: &Dim,
    hidden: i64,
) -> Result<Cell, Refusal> {
    let gates = Dim::from(hidden.saturating_mul(4));
    let mut matrix = |value: Value, columns: Dim| {
        let one = call.slice_axis(value, 0, Dim::from(direction), Dim::from(1))?;
        let one = call.reshape(one, vec![gates.clone(), columns])?;
        call.transpose(one, vec![1, 0])
    };
    let input = matrix(w, features.clone())?;
    let recurrent = matrix(r, Dim::from(hidden))?;
    let bias = match call.optional(3)? {
        Some(bias) => {
            let own = call.slice_axis(bias, 0, Dim::from(direction), Dim::from(1))?;
            let own = call.reshape(own, vec![gates.clone() * Dim::from(2)])?;
            let first = call.slice_axis(own, 0, Dim::from(0), gates.clone())?;
            let second = call.slice_axis(own, 0, gates.clone(), gates)?;
            Some(call.binary(BinaryOp::Add, first, second)?)
        }
        None => None,
    };
    Ok(Cell { input, recurrent, bias, hidden })
}

/// `[B, H]` of an initial state, zeros if it is absent.
fn initial(
    call: &mut Call<'_, '_>,
    index: usize,
    direction: usize,
    batch: &Dim,
    hidden: i64,
) -> Result<Value, Refusal> {
    let shape = vec![batch.clone(), Dim::from(hidden)];
    match call.optional(index)? {
        Some(state) => {
            let own = call.slice_axis(state, 0, Dim::from(direction), Dim::from(1))?;
            call.reshape(own, shape)
        }
        None => {
            let dtype = call.input_type(0)?.dtype;
            let zero = call.scalar(0.0, dtype);
            call.broadcast(zero, shape)
        }
    }
}

/// `c' = f * c + i * g`, `h' = o * tanh(c')`
fn advance(call: &mut Call<'_, '_>, cell: &Cell, projected: Value, [h, c]: [Value; 2]) -> Result<[Value; 2], Refusal> {
    let carried = call.matmul(h, cell.recurrent)?;
    let mut gates = call.binary(BinaryOp::Add, projected, carried)?;
    if let Some(bias) = cell.bias {
        gates = call.binary(BinaryOp::Add, gates, bias)?;
    }
    let width = Dim::from(cell.hidden);
    let mut gate = |index: i64, op: UnaryOp| {
        let part = call.slice_axis(gates, 1, Dim::from(index * cell.hidden), width.clone())?;
        call.unary(op, part)
    };
    let input = gate(0, UnaryOp::Sigmoid)?;
    let output = gate(1, UnaryOp::Sigmoid)?;
    let forget = gate(2, UnaryOp::Sigmoid)?;
    let candidate = gate(3, UnaryOp::Tanh)?;
    let kept = call.binary(BinaryOp::Mul, forget, c)?;
    let added = call.binary(BinaryOp::Mul, input, candidate)?;
    let c = call.binary(BinaryOp::Add, kept, added)?;
    let squashed = call.unary(UnaryOp::Tanh, c)?;
    let h = call.binary(BinaryOp::Mul, output, squashed)?;
    Ok([h, c])
}
