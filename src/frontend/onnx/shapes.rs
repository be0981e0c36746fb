//! Symbolic values of small tensors: what `Shape → Gather → Mul → Concat` chains compute, as [`Dim`]s.
//!
//! An exporter writes a dynamic reshape as arithmetic on shape tensors. The IR wants the result as an attribute with
//! symbolic dims, so the importer carries the elements of such tensors along, exactly, and emits graph ops for them
//! only where they are used as data.
//!
//! Elements are `num / den` with a symbolic numerator and a positive constant denominator: old exporters scale shapes
//! in floats (`Floor(Cast(Shape) * 0.5)`). Symbols are taken to be at least 1.

use forge_ir::{DType, Dim, Tensor};

/// Tensors with more elements are never tracked.
pub(super) const MAX_TRACKED: usize = 1024;
/// Constants beyond this leave the range in which symbolic arithmetic cannot overflow.
const MAX_COEFFICIENT: i64 = 1 << 31;
/// Denominators stay powers of two up to this, so that f32 arithmetic on the same values is exact.
const MAX_DENOMINATOR: i64 = 1 << 16;

/// One element: `num / den`, `den > 0`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Element {
    num: Dim,
    den: i64,
}

impl Element {
    pub(super) fn new(num: Dim) -> Element {
        Element { num, den: 1 }
    }

    fn ratio(num: Dim, den: i64) -> Option<Element> {
        if let Some(n) = num.as_const() {
            let divisor = gcd(n.unsigned_abs(), den.unsigned_abs());
            let divisor = i64::try_from(divisor).ok()?.max(1);
            let den = den / divisor;
            // A constant third is no binary float: leave it to float arithmetic.
            return (den <= MAX_DENOMINATOR && den.count_ones() == 1)
                .then(|| Element { num: Dim::from(n / divisor), den });
        }
        if let Some(exact) = num.div_exact(&Dim::from(den)) {
            return Some(Element::new(exact));
        }
        (den <= MAX_DENOMINATOR).then_some(Element { num, den })
    }

    /// The dim, if the element is an integer.
    pub(super) fn as_dim(&self) -> Option<&Dim> {
        (self.den == 1).then_some(&self.num)
    }

    pub(super) fn as_const(&self) -> Option<i64> {
        self.as_dim()?.as_const()
    }

    pub(super) fn numerator(&self) -> &Dim {
        &self.num
    }

    pub(super) fn denominator(&self) -> i64 {
        self.den
    }

    fn as_f64(&self) -> Option<f64> {
        Some(self.num.as_const()? as f64 / self.den as f64)
    }

    fn from_f64(value: f64) -> Option<Element> {
        let scaled = value * MAX_DENOMINATOR as f64;
        if scaled.fract() != 0.0 || scaled.abs() > (1u64 << 52) as f64 {
            return None;
        }
        Element::ratio(Dim::from(scaled as i64), MAX_DENOMINATOR)
    }

    fn add(&self, other: &Element) -> Option<Element> {
        if let (Some(a), Some(b)) = (self.as_const(), other.as_const()) {
            return Some(Element::new(Dim::from(a.checked_add(b)?)));
        }
        let left = scale(&self.num, other.den)?;
        let right = scale(&other.num, self.den)?;
        Element::ratio(sum(&left, &right)?, self.den.checked_mul(other.den)?)
    }

    fn negated(&self) -> Option<Element> {
        Some(Element { num: scale(&self.num, -1)?, den: self.den })
    }

    fn mul(&self, other: &Element) -> Option<Element> {
        Element::ratio(product(&self.num, &other.num)?, self.den.checked_mul(other.den)?)
    }

    /// Division in the dtype's sense: truncating for integers (floor, as symbolic dims are not negative).
    fn div(&self, other: &Element, integer: bool) -> Option<Element> {
        if integer {
            let (a, b) = (self.as_dim()?, other.as_dim()?);
            return match (a.as_const(), b.as_const()) {
                (_, Some(0)) => None,
                (Some(a), Some(b)) => Some(Element::new(Dim::from(a.checked_div(b)?))),
                _ if a.lower_bound()? >= 0 && b.lower_bound()? >= 1 => Some(Element::new(a.floor_div(b))),
                _ => None,
            };
        }
        match other.num.as_const() {
            Some(0) => None,
            Some(n) => {
                let num = scale(&self.num, other.den.checked_mul(n.signum())?)?;
                Element::ratio(num, self.den.checked_mul(n.checked_abs()?)?)
            }
            None => Some(Element::new(scale(&self.num, other.den)?.div_exact(&scale(&other.num, self.den)?)?)),
        }
    }

    fn floor(&self) -> Element {
        Element::new(self.num.floor_div(&Dim::from(self.den)))
    }

    fn ceil(&self) -> Element {
        Element::new(self.num.ceil_div(&Dim::from(self.den)))
    }

    fn truncated(&self) -> Option<Element> {
        match self.num.as_const() {
            Some(n) => Some(Element::new(Dim::from(n / self.den))),
            None if self.den == 1 || self.num.lower_bound()? >= 0 => Some(self.floor()),
            None => None,
        }
    }

    /// `self - other` if its sign is known: negative, zero or positive; `None` if it depends on symbols.
    fn compare(&self, other: &Element) -> Option<std::cmp::Ordering> {
        use std::cmp::Ordering;
        if self == other {
            return Some(Ordering::Equal);
        }
        if let (Some(a), Some(b)) = (self.as_const(), other.as_const()) {
            return Some(a.cmp(&b));
        }
        let difference = self.add(&other.negated()?)?.num;
        match difference.as_const() {
            Some(d) => Some(d.cmp(&0)),
            None if difference.lower_bound().is_some_and(|low| low > 0) => Some(Ordering::Greater),
            None if (Dim::from(0) - difference).lower_bound().is_some_and(|low| low > 0) => Some(Ordering::Less),
            None => None,
        }
    }
}

/// The symbolic elements of a small tensor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Known {
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
    pub(super) elements: Vec<Element>,
}

/// A two-operand function of elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pairwise {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    Min,
    Max,
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    And,
    Or,
}

impl Known {
    /// `None` if the elements do not fill the shape or are too many.
    pub(super) fn new(dtype: DType, shape: Vec<usize>, elements: Vec<Element>) -> Option<Known> {
        let count = shape.iter().try_fold(1usize, |acc, d| acc.checked_mul(*d))?;
        (count == elements.len() && count <= MAX_TRACKED).then_some(Known { dtype, shape, elements })
    }

    pub(super) fn vector(dims: &[Dim]) -> Option<Known> {
        Known::new(DType::I64, vec![dims.len()], dims.iter().cloned().map(Element::new).collect())
    }

    pub(super) fn scalar(dim: Dim) -> Known {
        Known { dtype: DType::I64, shape: Vec::new(), elements: vec![Element::new(dim)] }
    }

    /// The elements of a small constant; `None` if it is large or holds what an [`Element`] cannot.
    pub(super) fn from_tensor(tensor: &Tensor) -> Option<Known> {
        if tensor.numel() > MAX_TRACKED {
            return None;
        }
        let elements = match tensor.to_i64() {
            Some(values) if tensor.dtype() != DType::U64 => {
                values.into_iter().map(|v| Element::new(Dim::from(v))).collect()
            }
            Some(_) => return None,
            // Negative zero is a value that an integer ratio forgets.
            None if tensor.numel() <= 16 && matches!(tensor.dtype(), DType::F32 | DType::F64) => {
                let values = tensor.to_f64();
                if values.iter().any(|v| *v == 0.0 && v.is_sign_negative()) {
                    return None;
                }
                values.into_iter().map(Element::from_f64).collect::<Option<Vec<_>>>()?
            }
            None => return None,
        };
        Known::new(tensor.dtype(), tensor.shape().to_vec(), elements)
    }

    /// The tensor, if every element is a constant that its dtype holds exactly.
    pub(super) fn to_tensor(&self) -> Option<Tensor> {
        let tensor = if self.dtype.is_float() {
            let values: Option<Vec<f64>> = self.elements.iter().map(Element::as_f64).collect();
            let values = values?;
            let tensor = Tensor::from_f64(self.dtype, &self.shape, &values);
            return (tensor.to_f64() == values).then_some(tensor);
        } else {
            let values: Option<Vec<i64>> = self.elements.iter().map(Element::as_const).collect();
            Tensor::from_i64(self.dtype, &self.shape, &values?)
        };
        Some(tensor)
    }

    /// The elements as dims, whatever the rank; `None` if one is a fraction.
    pub(super) fn dims(&self) -> Option<Vec<Dim>> {
        self.elements.iter().map(|e| e.as_dim().cloned()).collect()
    }

    pub(super) fn consts(&self) -> Option<Vec<i64>> {
        self.elements.iter().map(Element::as_const).collect()
    }

    pub(super) fn reshaped(&self, shape: &[usize]) -> Option<Known> {
        Known::new(self.dtype, shape.to_vec(), self.elements.clone())
    }

    /// Each result element is the operand's at the index that `at` gives.
    fn pick(&self, shape: Vec<usize>, at: impl Fn(&[usize]) -> Option<usize>) -> Option<Known> {
        let count = shape.iter().try_fold(1usize, |acc, d| acc.checked_mul(*d)).filter(|c| *c <= MAX_TRACKED)?;
        let mut elements = Vec::with_capacity(count);
        for flat in 0..count {
            elements.push(self.elements.get(at(&unflatten(flat, &shape))?)?.clone());
        }
        Known::new(self.dtype, shape, elements)
    }

    pub(super) fn transposed(&self, perm: &[usize]) -> Option<Known> {
        let shape: Option<Vec<usize>> = perm.iter().map(|p| self.shape.get(*p).copied()).collect();
        self.pick(shape?, |index| {
            let mut source = vec![0; index.len()];
            for (i, p) in perm.iter().enumerate() {
                *source.get_mut(*p)? = *index.get(i)?;
            }
            Some(flatten(&source, &self.shape))
        })
    }

    pub(super) fn broadcast(&self, shape: &[usize]) -> Option<Known> {
        let lead = shape.len().checked_sub(self.shape.len())?;
        let fits = self.shape.iter().zip(&shape[lead..]).all(|(a, b)| a == b || *a == 1);
        if !fits {
            return None;
        }
        self.pick(shape.to_vec(), |index| {
            let source: Vec<usize> =
                index[lead..].iter().zip(&self.shape).map(|(i, d)| if *d == 1 { 0 } else { *i }).collect();
            Some(flatten(&source, &self.shape))
        })
    }

    /// numpy `take` along `axis`.
    pub(super) fn gather(&self, axis: usize, indices: &Known) -> Option<Known> {
        let size = *self.shape.get(axis)?;
        let picks: Option<Vec<usize>> = indices.consts()?.iter().map(|i| wrap_index(*i, size)).collect();
        let picks = picks?;
        let mut shape = self.shape[..axis].to_vec();
        shape.extend(&indices.shape);
        shape.extend(&self.shape[axis + 1..]);
        let inner = indices.shape.len();
        self.pick(shape, |index| {
            let pick = *picks.get(flatten(&index[axis..axis + inner], &indices.shape))?;
            let mut source = index[..axis].to_vec();
            source.push(pick);
            source.extend(&index[axis + inner..]);
            Some(flatten(&source, &self.shape))
        })
    }

    /// `start, step, size` for each axis, in bounds.
    pub(super) fn sliced(&self, ranges: &[(i64, i64, usize)]) -> Option<Known> {
        if ranges.len() != self.shape.len() {
            return None;
        }
        self.pick(ranges.iter().map(|r| r.2).collect(), |index| {
            let mut source = Vec::with_capacity(index.len());
            for ((i, (start, step, _)), size) in index.iter().zip(ranges).zip(&self.shape) {
                let at = usize::try_from(start.checked_add(i64::try_from(*i).ok()?.checked_mul(*step)?)?).ok()?;
                source.push(Some(at).filter(|at| at < size)?);
            }
            Some(flatten(&source, &self.shape))
        })
    }

    /// All of one dtype and rank, joined along `axis`.
    pub(super) fn concat(parts: &[Known], axis: usize) -> Option<Known> {
        let first = parts.first()?;
        let mut shape = first.shape.clone();
        *shape.get_mut(axis)? = parts.iter().map(|p| p.shape.get(axis).copied()).sum::<Option<usize>>()?;
        let outer: usize = first.shape[..axis].iter().product();
        let mut elements = Vec::new();
        for part in parts {
            let same = |range: std::ops::Range<usize>| part.shape.get(range.clone()) == first.shape.get(range);
            let rank = first.shape.len();
            if part.dtype != first.dtype || part.shape.len() != rank || !same(0..axis) || !same(axis + 1..rank) {
                return None;
            }
        }
        for row in 0..outer {
            for part in parts {
                let width: usize = part.shape[axis..].iter().product();
                elements.extend_from_slice(part.elements.get(row * width..(row + 1) * width)?);
            }
        }
        Known::new(first.dtype, shape, elements)
    }

    /// Elementwise with broadcasting; `None` where a result depends on symbols in a way that is no dim.
    pub(super) fn pairwise(&self, other: &Known, op: Pairwise) -> Option<Known> {
        let shape = broadcast_shape(&self.shape, &other.shape)?;
        let (a, b) = (self.broadcast(&shape)?, other.broadcast(&shape)?);
        let compares = matches!(
            op,
            Pairwise::Equal | Pairwise::Less | Pairwise::LessOrEqual | Pairwise::Greater | Pairwise::GreaterOrEqual
        );
        let dtype = if compares { DType::Bool } else { self.dtype };
        let integer = !self.dtype.is_float();
        let elements: Option<Vec<Element>> =
            a.elements.iter().zip(&b.elements).map(|(x, y)| apply(op, x, y, integer)).collect();
        Known::new(dtype, shape, elements?)?.in_range()
    }

    /// Elementwise on one operand.
    pub(super) fn map(&self, dtype: DType, f: impl Fn(&Element) -> Option<Element>) -> Option<Known> {
        let elements: Option<Vec<Element>> = self.elements.iter().map(f).collect();
        Known::new(dtype, self.shape.clone(), elements?)?.in_range()
    }

    pub(super) fn cast(&self, to: DType) -> Option<Known> {
        match to {
            DType::Bool => self.map(to, |e| {
                let zero = e.compare(&Element::new(Dim::from(0)))?;
                Some(Element::new(Dim::from(i64::from(zero.is_ne()))))
            }),
            DType::F16 | DType::BF16 | DType::U64 => None,
            _ if to.is_float() => self.map(to, |e| Some(e.clone())),
            _ => self.map(to, Element::truncated),
        }
    }

    pub(super) fn floor(&self) -> Option<Known> {
        self.map(self.dtype, |e| Some(e.floor()))
    }

    pub(super) fn ceil(&self) -> Option<Known> {
        self.map(self.dtype, |e| Some(e.ceil()))
    }

    pub(super) fn negated(&self) -> Option<Known> {
        self.map(self.dtype, Element::negated)
    }

    /// Logical not of a bool.
    pub(super) fn inverted(&self) -> Option<Known> {
        self.map(self.dtype, |e| Some(Element::new(Dim::from(i64::from(e.as_const()? == 0)))))
    }

    pub(super) fn select(condition: &Known, then: &Known, otherwise: &Known) -> Option<Known> {
        let shape = broadcast_shape(&broadcast_shape(&condition.shape, &then.shape)?, &otherwise.shape)?;
        let (c, a, b) = (condition.broadcast(&shape)?, then.broadcast(&shape)?, otherwise.broadcast(&shape)?);
        let mut elements = Vec::with_capacity(c.elements.len());
        for ((c, a), b) in c.elements.iter().zip(a.elements).zip(b.elements) {
            elements.push(if c.as_const()? != 0 { a } else { b });
        }
        Known::new(then.dtype, shape, elements)
    }

    /// Folds all elements with an associative `op`, starting from `empty`.
    pub(super) fn fold(&self, op: Pairwise, empty: i64) -> Option<Element> {
        let integer = !self.dtype.is_float();
        let mut elements = self.elements.iter();
        let Some(first) = elements.next() else { return Some(Element::new(Dim::from(empty))) };
        elements.try_fold(first.clone(), |acc, e| apply(op, &acc, e, integer))
    }

    /// Constants must be values of the dtype: a narrow integer that would wrap, or a float that would round, is not
    /// tracked.
    fn in_range(self) -> Option<Known> {
        for element in &self.elements {
            let Some(num) = element.num.as_const() else { continue };
            let fits = match self.dtype {
                DType::Bool => num == 0 || num == 1,
                DType::U8 => u8::try_from(num).is_ok(),
                DType::U16 => u16::try_from(num).is_ok(),
                DType::U32 => u32::try_from(num).is_ok(),
                DType::I8 => i8::try_from(num).is_ok(),
                DType::I16 => i16::try_from(num).is_ok(),
                DType::I32 => i32::try_from(num).is_ok(),
                DType::F32 => num.unsigned_abs() <= 1 << 24,
                _ => true,
            };
            if !fits {
                return None;
            }
        }
        Some(self)
    }
}

fn apply(op: Pairwise, x: &Element, y: &Element, integer: bool) -> Option<Element> {
    let truth = |value: bool| Some(Element::new(Dim::from(i64::from(value))));
    match op {
        Pairwise::Add => x.add(y),
        Pairwise::Sub => x.add(&y.negated()?),
        Pairwise::Mul => x.mul(y),
        Pairwise::Div => x.div(y, integer),
        Pairwise::Mod => {
            let (a, b) = (x.as_dim()?, y.as_dim()?);
            let positive = b.as_const().map_or_else(|| b.lower_bound().is_some_and(|l| l > 0), |c| c > 0);
            positive.then(|| Element::new(a.modulo(b)))
        }
        Pairwise::Min | Pairwise::Max => {
            let wants_x = |order: std::cmp::Ordering| (op == Pairwise::Min) == order.is_le();
            match x.compare(y) {
                Some(order) => Some(if wants_x(order) { x.clone() } else { y.clone() }),
                None => {
                    let (a, b) = (x.as_dim()?, y.as_dim()?);
                    Some(Element::new(if op == Pairwise::Min { a.minimum(b) } else { a.maximum(b) }))
                }
            }
        }
        Pairwise::Equal => truth(x.compare(y)?.is_eq()),
        Pairwise::Less => truth(x.compare(y)?.is_lt()),
        Pairwise::LessOrEqual => truth(x.compare(y)?.is_le()),
        Pairwise::Greater => truth(x.compare(y)?.is_gt()),
        Pairwise::GreaterOrEqual => truth(x.compare(y)?.is_ge()),
        Pairwise::And => truth(x.as_const()? != 0 && y.as_const()? != 0),
        Pairwise::Or => truth(x.as_const()? != 0 || y.as_const()? != 0),
    }
}

/// `index` as a position along an axis of `size`, negatives counted from the end.
pub(super) fn wrap_index(index: i64, size: usize) -> Option<usize> {
    let size_signed = i64::try_from(size).ok()?;
    let at = if index < 0 { index.checked_add(size_signed)? } else { index };
    usize::try_from(at).ok().filter(|at| *at < size)
}

/// numpy broadcasting of constant shapes.
pub(super) fn broadcast_shape(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let rank = a.len().max(b.len());
    let at = |shape: &[usize], i: usize| (i + shape.len()).checked_sub(rank).map_or(1, |i| shape[i]);
    (0..rank)
        .map(|i| match (at(a, i), at(b, i)) {
            (x, y) if x == y || y == 1 => Some(x),
            (1, y) => Some(y),
            _ => None,
        })
        .collect()
}

fn scale(dim: &Dim, by: i64) -> Option<Dim> {
    product(dim, &Dim::from(by))
}

/// `a * b` unless constants grow beyond what symbolic arithmetic holds.
fn product(a: &Dim, b: &Dim) -> Option<Dim> {
    match (a.as_const(), b.as_const()) {
        (Some(a), Some(b)) => a.checked_mul(b).map(Dim::from),
        (Some(c), None) | (None, Some(c)) if c.unsigned_abs() > MAX_COEFFICIENT.unsigned_abs() => None,
        _ => Some(a.clone() * b.clone()),
    }
}

fn sum(a: &Dim, b: &Dim) -> Option<Dim> {
    match (a.as_const(), b.as_const()) {
        (Some(a), Some(b)) => a.checked_add(b).map(Dim::from),
        (Some(c), None) | (None, Some(c)) if c.unsigned_abs() > MAX_COEFFICIENT.unsigned_abs() => None,
        _ => Some(a.clone() + b.clone()),
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn flatten(index: &[usize], shape: &[usize]) -> usize {
    index.iter().zip(shape).fold(0, |acc, (i, d)| acc * d + i)
}

fn unflatten(mut flat: usize, shape: &[usize]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (i, d) in index.iter_mut().zip(shape).rev() {
        *i = flat % d;
        flat /= d;
    }
    index
}

#[cfg(test)]
mod tests {
    use super::{Element, Known, Pairwise};
    use forge_ir::{DType, Dim, Tensor};

    fn dims(names: &[&str]) -> Known {
        let dims: Vec<Dim> = names.iter().map(|n| Dim::parse(n).unwrap()).collect();
        Known::vector(&dims).unwrap()
    }

    fn ints(values: &[i64]) -> Known {
        Known::from_tensor(&Tensor::from_slice(&[values.len()], values)).unwrap()
    }

    #[test]
    fn a_reshape_chain() {
        // Concat(Gather(Shape(x), 0), [-1], Gather(Shape(x), 2) // 2)
        let shape = dims(&["batch", "seq", "768"]);
        let batch = shape.gather(0, &ints(&[0])).unwrap();
        let last = shape.gather(0, &ints(&[-1])).unwrap().pairwise(&ints(&[2]), Pairwise::Div).unwrap();
        let target = Known::concat(&[batch, ints(&[-1]), last], 0).unwrap();
        assert_eq!(target, dims(&["batch", "-1", "384"]));
    }

    #[test]
    fn scaled_sizes_go_through_floats() {
        let height = dims(&["h"]).cast(DType::F32).unwrap();
        let factor = |f: f32| Known::from_tensor(&Tensor::from_slice(&[1], &[f])).unwrap();
        let doubled = height.pairwise(&factor(2.0), Pairwise::Mul).unwrap().floor().unwrap();
        assert_eq!(doubled.cast(DType::I64).unwrap(), dims(&["h*2"]));
        let halved = height.pairwise(&factor(0.5), Pairwise::Mul).unwrap();
        assert_eq!(halved.cast(DType::I64).unwrap(), dims(&["floordiv(h, 2)"]));
        assert_eq!(halved.ceil().unwrap().cast(DType::I64).unwrap(), dims(&["floordiv(h + 1, 2)"]));
        assert_eq!(halved.pairwise(&factor(4.0), Pairwise::Mul).unwrap().cast(DType::I64).unwrap(), dims(&["h*2"]));
        assert!(Known::from_tensor(&Tensor::from_slice(&[1], &[0.1f32])).is_none(), "0.1 is no short binary fraction");
    }

    #[test]
    fn comparisons_decide_only_what_symbols_allow() {
        let equal = |a: &str, b: i64| dims(&[a]).pairwise(&ints(&[b]), Pairwise::Equal).and_then(|k| k.consts());
        assert_eq!(equal("seq", -1), Some(vec![0]));
        assert_eq!(equal("seq", 0), Some(vec![0]));
        assert_eq!(equal("seq", 7), None);
        let less = dims(&["seq"]).pairwise(&dims(&["seq + 1"]), Pairwise::Less).unwrap();
        assert_eq!(less.consts(), Some(vec![1]));
    }

    #[test]
    fn torch_pad_idiom() {
        // [l, r, t, b] -> reshape [-1, 2], reverse rows, transpose, flatten -> [t, l, b, r]
        let pads = ints(&[1, 2, 3, 4]).reshaped(&[2, 2]).unwrap();
        let reversed = pads.sliced(&[(1, -1, 2), (0, 1, 2)]).unwrap();
        assert_eq!(reversed.transposed(&[1, 0]).unwrap().consts(), Some(vec![3, 1, 4, 2]));
    }

    #[test]
    fn integer_semantics() {
        let truncated = ints(&[8, -8, 7, -7]).pairwise(&ints(&[-3, 3, -2, 2]), Pairwise::Div).unwrap();
        assert_eq!(truncated.consts(), Some(vec![-2, -2, -3, -3]));
        assert!(ints(&[1]).pairwise(&ints(&[0]), Pairwise::Div).is_none());
        assert!(ints(&[i64::MIN]).pairwise(&ints(&[-1]), Pairwise::Div).is_none());
        assert!(ints(&[i64::MAX]).pairwise(&ints(&[1]), Pairwise::Add).is_none());
        assert_eq!(dims(&["n", "3"]).fold(Pairwise::Mul, 1), Some(Element::new(Dim::parse("n*3").unwrap())));
        let wide = ints(&[200]).cast(DType::I8);
        assert!(wide.is_none(), "200 wraps in i8");
    }
}
