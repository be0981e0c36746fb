//! Einsum as transposes, reshapes and one matmul per further operand.

use forge_ir::{Dim, Op, ReduceOp, Value};

use super::super::lower::{Call, Lowered, Refusal};

/// Labels are letters; the axes that an ellipsis stands for get the numbers after `z`, right-aligned.
type Label = u32;

struct Term {
    value: Value,
    labels: Vec<Label>,
}

pub(super) fn einsum(call: &mut Call<'_, '_>) -> Lowered {
    let equation = call.attributes.string("equation")?.ok_or_else(|| Refusal::invalid("the equation is missing"))?;
    let equation: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
    let operands = call.all_inputs()?;
    let (left, right) = match equation.split_once("->") {
        Some((left, right)) => (left.to_owned(), Some(right.to_owned())),
        None => (equation.clone(), None),
    };
    let parts: Vec<&str> = left.split(',').collect();
    if parts.len() != operands.len() {
        return Err(Refusal::invalid(format!("equation '{equation}' does not have {} operands", operands.len())));
    }
    let mut terms = Vec::new();
    let mut ellipsis = 0;
    for (part, value) in parts.iter().zip(&operands) {
        let (own, hidden) = labels(part, call.rank(*value), &equation)?;
        ellipsis = ellipsis.max(hidden);
        terms.push(Term { value: *value, labels: own });
    }
    let wanted = match right {
        Some(right) => {
            let letters = right.replace("...", "").chars().count();
            let rank = letters + if right.contains("...") { ellipsis } else { 0 };
            labels(&right, rank, &equation)?.0
        }
        None => implicit(&terms, ellipsis),
    };
    for (index, label) in wanted.iter().enumerate() {
        if wanted[..index].contains(label) || !terms.iter().any(|t| t.labels.contains(label)) {
            return Err(Refusal::invalid(format!("the result of equation '{equation}' repeats or invents a label")));
        }
    }

    let mut pending = terms.into_iter();
    let mut acc = match pending.next() {
        Some(first) => diagonal(call, first)?,
        None => return Err(Refusal::invalid("it has no operands")),
    };
    let mut rest = Vec::new();
    for term in pending {
        rest.push(diagonal(call, term)?);
    }
    while !rest.is_empty() {
        let next = rest.remove(0);
        let needed = |label: &Label| wanted.contains(label) || rest.iter().any(|t| t.labels.contains(label));
        acc = contract(call, acc, next, &needed)?;
    }
    let acc = sum_out(call, acc, &|label| wanted.contains(label))?;
    let y = arranged(call, &acc, &wanted)?;
    call.output(0, y)
}

/// Labels of a term, and how many axes its ellipsis covers.
fn labels(term: &str, rank: usize, equation: &str) -> Result<(Vec<Label>, usize), Refusal> {
    let wrong = || Refusal::invalid(format!("equation '{equation}' does not fit an operand of {rank} axes"));
    let (before, after) = match term.split_once("...") {
        Some((before, after)) => (before, Some(after)),
        None => (term, None),
    };
    let letters = |text: &str| -> Result<Vec<Label>, Refusal> {
        let letter = |c: char| if c.is_ascii_alphabetic() { Ok(Label::from(c)) } else { Err(wrong()) };
        text.chars().map(letter).collect()
    };
    let mut out = letters(before)?;
    let Some(after) = after else {
        return if out.len() == rank { Ok((out, 0)) } else { Err(wrong()) };
    };
    let after = letters(after)?;
    let hidden = rank.checked_sub(out.len() + after.len()).ok_or_else(wrong)?;
    // The last hidden axis is 256 + 0, so that ellipses of different lengths align at the right.
    out.extend((0..hidden).rev().map(|i| 256 + i as Label));
    out.extend(after);
    Ok((out, hidden))
}

/// Without `->`: the ellipsis, then the letters that occur once, in order.
fn implicit(terms: &[Term], ellipsis: usize) -> Vec<Label> {
    let mut out: Vec<Label> = (0..ellipsis).rev().map(|i| 256 + i as Label).collect();
    let all: Vec<Label> = terms.iter().flat_map(|t| &t.labels).copied().filter(|l| *l < 256).collect();
    let mut once: Vec<Label> = all.iter().copied().filter(|l| all.iter().filter(|m| *m == l).count() == 1).collect();
    once.sort_unstable();
    out.extend(once);
    out
}

/// Repeated labels within a term take the diagonal: a masked sum would compute, a gather does not.
fn diagonal(call: &mut Call<'_, '_>, mut term: Term) -> Result<Term, Refusal> {
    loop {
        let repeat = term
            .labels
            .iter()
            .enumerate()
            .find_map(|(i, l)| term.labels[i + 1..].iter().position(|m| m == l).map(|j| (i, i + 1 + j)));
        let Some((first, second)) = repeat else { return Ok(term) };
        // Bring both axes to the front: [n, n, ..] -> [n*n, ..] -> every (n+1)th row.
        let mut perm = vec![first, second];
        perm.extend((0..term.labels.len()).filter(|i| *i != first && *i != second));
        let shape = call.shape(term.value);
        let moved = call.transpose(term.value, perm.clone())?;
        let size = shape[first].clone();
        let n = super::super::lower::fixed(&size, "the size of a repeated einsum label")?;
        let rest: Vec<Dim> = perm[2..].iter().map(|i| shape[*i].clone()).collect();
        let mut flat = vec![size.clone() * shape[second].clone()];
        flat.extend(rest.clone());
        let flat_value = call.reshape(moved, flat.clone())?;
        let starts = vec![Dim::from(0); flat.len()];
        let mut steps = vec![1; flat.len()];
        steps[0] = n + 1;
        let mut sizes = flat;
        sizes[0] = size;
        term.value = call.emit(Op::Slice { starts, steps, sizes }, &[flat_value])?;
        term.labels = perm.iter().filter(|i| **i != second).map(|i| term.labels[*i]).collect();
    }
}

/// Sums over labels that nothing needs any more.
fn sum_out(call: &mut Call<'_, '_>, term: Term, needed: &dyn Fn(&Label) -> bool) -> Result<Term, Refusal> {
    let axes: Vec<usize> = (0..term.labels.len()).filter(|i| !needed(&term.labels[*i])).collect();
    let value = call.reduce(ReduceOp::Sum, term.value, &axes, false)?;
    Ok(Term { value, labels: term.labels.into_iter().filter(|l| needed(l)).collect() })
}

/// The term with its axes in the order of `labels`; labels that it lacks become axes of 1.
fn arranged(call: &mut Call<'_, '_>, term: &Term, labels: &[Label]) -> Result<Value, Refusal> {
    let perm: Vec<usize> = labels.iter().filter_map(|l| term.labels.iter().position(|m| m == l)).collect();
    let value = call.transpose(term.value, perm)?;
    let mut shape = call.shape(value).into_iter();
    let full = labels
        .iter()
        .map(|l| if term.labels.contains(l) { shape.next().unwrap_or(Dim::from(1)) } else { Dim::from(1) })
        .collect();
    call.reshape(value, full)
}

/// One matmul: labels of both that are still needed are its batch, labels of both that are not are contracted.
fn contract(call: &mut Call<'_, '_>, a: Term, b: Term, needed: &dyn Fn(&Label) -> bool) -> Result<Term, Refusal> {
    let a_labels = a.labels.clone();
    let b_labels = b.labels.clone();
    let a = sum_out(call, a, &|l| needed(l) || b_labels.contains(l))?;
    let b = sum_out(call, b, &|l| needed(l) || a_labels.contains(l))?;
    // A size of 1 against more (allowed under an ellipsis) broadcasts, which a contraction of flattened axes would not.
    let (a_shape, b_shape) = (call.shape(a.value), call.shape(b.value));
    let at = |term: &Term, label: &Label| term.labels.iter().position(|l| l == label);
    let mismatched = |label: &Label| match (at(&a, label), at(&b, label)) {
        (Some(i), Some(j)) => a_shape[i].is_one() != b_shape[j].is_one(),
        _ => false,
    };
    let both: Vec<Label> = a.labels.iter().copied().filter(|l| b.labels.contains(l)).collect();
    if both.iter().any(mismatched) {
        return multiplied(call, &a, &b, needed);
    }
    let batch: Vec<Label> = both.iter().copied().filter(|l| needed(l)).collect();
    let inner: Vec<Label> = both.iter().copied().filter(|l| !needed(l)).collect();
    if inner.is_empty() {
        return multiplied(call, &a, &b, needed);
    }
    let rows: Vec<Label> = a.labels.iter().copied().filter(|l| !both.contains(l)).collect();
    let columns: Vec<Label> = b.labels.iter().copied().filter(|l| !both.contains(l)).collect();
    let dims = |term: &Term, shape: &[Dim], labels: &[Label]| -> Vec<Dim> {
        labels.iter().filter_map(|l| at(term, l)).map(|i| shape[i].clone()).collect()
    };
    let batch_dims = dims(&a, &a_shape, &batch);
    let (row_dims, column_dims) = (dims(&a, &a_shape, &rows), dims(&b, &b_shape, &columns));
    let inner_dim = Dim::product(&dims(&a, &a_shape, &inner));

    let order = |parts: [&[Label]; 3]| parts.concat();
    let left = arranged(call, &a, &order([&batch, &rows, &inner]))?;
    let mut shape = batch_dims.clone();
    shape.extend([Dim::product(&row_dims), inner_dim.clone()]);
    let left = call.reshape(left, shape)?;
    let right = arranged(call, &b, &order([&batch, &inner, &columns]))?;
    let mut shape = batch_dims.clone();
    shape.extend([inner_dim, Dim::product(&column_dims)]);
    let right = call.reshape(right, shape)?;
    let product = call.matmul(left, right)?;
    let value = call.reshape(product, [batch_dims, row_dims, column_dims].concat())?;
    Ok(Term { value, labels: order([&batch, &rows, &columns]) })
}

/// The product with broadcasting, then the sums.
fn multiplied(call: &mut Call<'_, '_>, a: &Term, b: &Term, needed: &dyn Fn(&Label) -> bool) -> Result<Term, Refusal> {
    let mut labels = a.labels.clone();
    labels.extend(b.labels.iter().filter(|l| !a.labels.contains(l)));
    let (left, right) = (arranged(call, a, &labels)?, arranged(call, b, &labels)?);
    let value = call.binary(forge_ir::BinaryOp::Mul, left, right)?;
    sum_out(call, Term { value, labels }, needed)
}
