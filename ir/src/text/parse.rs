//! Text to graphs: recursive descent over the tokens of `lexer.rs`. Types are checked as ops are added, so what parses
//! is well typed.

mod attributes;
mod types;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use crate::graph::{Graph, Loc, NodeId, Value};
use crate::infer::InferError;
use crate::op::{Attr, Fused, Op};
use crate::tensor::{Tensor, TensorType};

use super::error::{ParseError, nearest};
use super::lexer::{LocComment, Span, Token, TokenKind, ValueName, lex};
use super::print::type_text;

/// Nesting of fused bodies and of dim functions that the parser follows.
const MAX_DEPTH: usize = 24;
/// Terms that the element count of one type (or the product of one list of dims) may have: dims are polynomials, and
/// inference multiplies them out.
const MAX_TERMS: usize = 1024;
/// Operands of one op, and results.
const MAX_OPERANDS: usize = 65_535;

/// Reads one graph.
///
/// # Errors
/// The first place that does not read as a well-typed graph.
pub fn parse(source: &str) -> Result<Graph, ParseError> {
    let mut parser = Parser::new(source)?;
    let graph = parser.graph()?;
    parser.expect_end("the end of the text after the graph")?;
    Ok(graph)
}

/// Reads every graph of a text, which may have none.
///
/// # Errors
/// As [`parse`].
pub fn parse_module(source: &str) -> Result<Vec<Graph>, ParseError> {
    let mut parser = Parser::new(source)?;
    let mut graphs = Vec::new();
    while parser.kind() != &TokenKind::End {
        graphs.push(parser.graph()?);
    }
    parser.expect_end("a graph")?;
    Ok(graphs)
}

type Parsed<T> = Result<T, ParseError>;

pub(super) struct Parser<'a> {
    source: &'a str,
    tokens: Vec<Token<'a>>,
    at: usize,
    locs: BTreeMap<usize, LocComment>,
    depth: usize,
    end: Token<'a>,
}

/// The values in sight while a graph is read: all results of a node by the node's name.
type Scope = HashMap<ValueName, NodeId>;

impl<'a> Parser<'a> {
    fn new(source: &'a str) -> Parsed<Parser<'a>> {
        let lexed = lex(source)?;
        let span = Span { start: source.len(), end: source.len() };
        let end = Token { kind: TokenKind::End, span, line: source.matches('\n').count() + 1 };
        Ok(Parser { source, tokens: lexed.tokens, at: 0, locs: lexed.locs, depth: 0, end })
    }

    // Tokens.

    fn token(&self) -> &Token<'a> {
        self.tokens.get(self.at).unwrap_or(&self.end)
    }

    fn kind(&self) -> &TokenKind<'a> {
        &self.token().kind
    }

    fn second(&self) -> &TokenKind<'a> {
        &self.tokens.get(self.at + 1).unwrap_or(&self.end).kind
    }

    fn span(&self) -> Span {
        self.token().span
    }

    fn previous(&self) -> &Token<'a> {
        self.at.checked_sub(1).and_then(|at| self.tokens.get(at)).unwrap_or(&self.end)
    }

    fn advance(&mut self) {
        self.at += 1;
    }

    fn error(&self, span: Span, message: impl Into<String>) -> ParseError {
        ParseError::new(self.source, span, message)
    }

    /// "expected X, found Y" at the present token.
    fn unexpected(&self, expected: &str) -> ParseError {
        let found = match self.kind() {
            TokenKind::End => "the end of the text".to_owned(),
            _ => {
                let span = self.span();
                let text: String = self.source.get(span.start..span.end).unwrap_or_default().chars().take(40).collect();
                format!("'{text}'")
            }
        };
        self.error(self.span(), format!("expected {expected}, found {found}"))
    }

    fn eat(&mut self, punct: char) -> bool {
        let hit = self.kind() == &TokenKind::Punct(punct);
        self.at += usize::from(hit);
        hit
    }

    fn expect(&mut self, punct: char) -> Parsed<()> {
        if self.eat(punct) { Ok(()) } else { Err(self.unexpected(&format!("'{punct}'"))) }
    }

    fn expect_end(&mut self, expected: &str) -> Parsed<()> {
        if self.kind() != &TokenKind::End {
            return Err(self.unexpected(expected));
        }
        match self.locs.values().next() {
            None => Ok(()),
            Some(loc) => Err(self
                .error(loc.span, "a loc comment belongs to no op")
                .with_help("it goes at the end of the line of an op or of an input")),
        }
    }

    fn keyword(&mut self, word: &str) -> Parsed<()> {
        match self.kind() {
            TokenKind::Ident(found) if *found == word => {
                self.advance();
                Ok(())
            }
            TokenKind::Ident(found) => {
                let suggestion = nearest(found, [word]);
                Err(self.unexpected(&format!("'{word}'")).with_suggestion(suggestion))
            }
            _ => Err(self.unexpected(&format!("'{word}'"))),
        }
    }

    fn is_keyword(&self, word: &str) -> bool {
        matches!(self.kind(), TokenKind::Ident(found) if *found == word)
    }

    fn ident(&mut self, expected: &str) -> Parsed<&'a str> {
        let TokenKind::Ident(found) = *self.kind() else {
            return Err(self.unexpected(expected));
        };
        self.advance();
        Ok(found)
    }

    fn text(&mut self, expected: &str) -> Parsed<String> {
        let TokenKind::Text(found) = self.kind() else {
            return Err(self.unexpected(expected));
        };
        let found = found.clone();
        self.advance();
        Ok(found)
    }

    fn symbol(&mut self, expected: &str) -> Parsed<String> {
        let TokenKind::Symbol(found) = self.kind() else {
            return Err(self.unexpected(expected));
        };
        let found = found.clone();
        self.advance();
        Ok(found)
    }

    fn value_name(&mut self) -> Parsed<ValueName> {
        let TokenKind::Value(found) = self.kind() else {
            return Err(self.unexpected("a value, such as %0"));
        };
        let found = found.clone();
        self.advance();
        Ok(found)
    }

    fn count(&mut self, expected: &str) -> Parsed<usize> {
        let TokenKind::Number(digits) = *self.kind() else {
            return Err(self.unexpected(expected));
        };
        let count = digits.parse().map_err(|_| self.unexpected(expected))?;
        self.advance();
        Ok(count)
    }

    /// Items up to `close`, separated by commas; one may trail.
    fn list<T>(&mut self, close: char, mut item: impl FnMut(&mut Self) -> Parsed<T>) -> Parsed<Vec<T>> {
        let mut items = Vec::new();
        loop {
            if self.eat(close) {
                return Ok(items);
            }
            items.push(item(self)?);
            if !self.eat(',') && self.kind() != &TokenKind::Punct(close) {
                return Err(self.unexpected(&format!("',' or '{close}'")));
            }
        }
    }

    /// Takes the loc comment of the line of the last token.
    fn loc(&mut self) -> Loc {
        let line = self.previous().line;
        self.locs.remove(&line).map_or_else(Loc::default, |comment| Loc(comment.names))
    }

    fn deeper<T>(&mut self, inside: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.depth >= MAX_DEPTH {
            return Err(self.error(self.span(), "nested too deeply"));
        }
        self.depth += 1;
        let result = inside(self);
        self.depth -= 1;
        result
    }

    // Graphs.

    fn graph(&mut self) -> Parsed<Graph> {
        self.keyword("graph")?;
        let mut graph = Graph::new(&self.symbol("the name of the graph, such as @main")?);
        let mut scope = Scope::new();
        self.expect('(')?;
        self.list(')', |p| p.input(&mut graph, &mut scope))?;
        if self.kind() != &TokenKind::Arrow {
            return Err(self.unexpected("'->'"));
        }
        self.advance();
        self.expect('(')?;
        let outputs = self.list(')', Self::output)?;
        self.expect('{')?;
        while self.is_keyword("metadata") {
            self.metadata(&mut graph)?;
        }
        while !self.is_keyword("return") {
            if !matches!(self.kind(), TokenKind::Value(_)) {
                return Err(self.unexpected("an op, such as '%0 = relu(%x)', or 'return'"));
            }
            self.statement(&mut graph, &mut scope)?;
        }
        self.results(&mut graph, &scope, outputs)?;
        Ok(graph)
    }

    /// `%x: f32[N]` or `%0 @"x": f32[N]`.
    fn input(&mut self, graph: &mut Graph, scope: &mut Scope) -> Parsed<()> {
        let span = self.span();
        let shown = self.value_name()?;
        let name = match (&shown, self.kind()) {
            (_, TokenKind::Symbol(_)) => self.symbol("a name")?,
            (ValueName::Name(name), _) => name.clone(),
            (ValueName::Number(_), _) => return Err(self.unexpected("the name of the input, such as @\"x\"")),
        };
        self.expect(':')?;
        let ty = self.ty()?;
        // The comma comes before the comment.
        let comma = self.kind() == &TokenKind::Punct(',');
        self.at += usize::from(comma);
        let loc = self.loc();
        self.at -= usize::from(comma);
        let value = graph.add_input(&name, ty);
        graph.node_mut(value.node).loc = loc;
        self.define(scope, shown, span, value.node)
    }

    fn output(&mut self) -> Parsed<(String, TensorType, Span)> {
        let named = self.second() == &TokenKind::Punct(':');
        let name = match self.kind() {
            TokenKind::Ident(name) if named => (*name).to_owned(),
            TokenKind::Text(name) if named => name.clone(),
            _ => String::new(),
        };
        if named {
            self.advance();
            self.expect(':')?;
        }
        let span = self.span();
        Ok((name, self.ty()?, span))
    }

    fn metadata(&mut self, graph: &mut Graph) -> Parsed<()> {
        self.advance();
        let span = self.span();
        let key = self.text("a quoted key")?;
        self.expect('=')?;
        let value = self.text("a quoted value")?;
        match graph.metadata.insert(key, value) {
            None => Ok(()),
            Some(_) => Err(self.error(span, "this key of the metadata is given twice")),
        }
    }

    fn results(&mut self, graph: &mut Graph, scope: &Scope, outputs: Vec<(String, TensorType, Span)>) -> Parsed<()> {
        self.new_line()?;
        let start = self.span();
        self.keyword("return")?;
        let mut values = Vec::new();
        while !self.eat('}') {
            if !values.is_empty() {
                self.expect(',')?;
            }
            let span = self.span();
            values.push((self.operand(graph, scope)?, span));
        }
        if values.len() != outputs.len() {
            let message = format!("the header has {} results, {} are returned", outputs.len(), values.len());
            return Err(self.error(start, message));
        }
        let mut named = Vec::new();
        for ((value, span), (name, stated, _)) in values.into_iter().zip(outputs) {
            let found = graph.ty(value);
            if *found != stated {
                let message = format!("this is {}, the header has {}", type_text(found), type_text(&stated));
                return Err(self.error(span, message));
            }
            named.push((name, value));
        }
        graph.set_outputs(named);
        Ok(())
    }

    fn new_line(&self) -> Parsed<()> {
        if self.token().line == self.previous().line {
            return Err(self.error(self.span(), "expected a new line: the form is one op a line"));
        }
        Ok(())
    }

    fn define(&self, scope: &mut Scope, name: ValueName, span: Span, node: NodeId) -> Parsed<()> {
        match scope.insert(name, node) {
            None => Ok(()),
            Some(_) => Err(self.error(span, "this name is defined twice")),
        }
    }

    fn operand(&mut self, graph: &Graph, scope: &Scope) -> Parsed<Value> {
        let span = self.span();
        let name = self.value_name()?;
        let Some(node) = scope.get(&name).copied() else {
            let error = self.error(span, "unknown value: a value is defined above its uses");
            return Err(match &name {
                ValueName::Number(_) => error,
                ValueName::Name(name) => {
                    let known = scope.keys().filter_map(|k| match k {
                        ValueName::Name(known) => Some(known.as_str()),
                        ValueName::Number(_) => None,
                    });
                    error.with_suggestion(nearest(name, known).map(|s| format!("%{s}")).as_deref())
                }
            });
        };
        let count = graph.node(node).outputs.len();
        if !self.eat('#') {
            if count != 1 {
                let help = "write which one, such as %5#0";
                return Err(self.error(span, format!("this op has {count} results")).with_help(help));
            }
            return Ok(Value { node, port: 0 });
        }
        let at = self.span();
        let port = self.count("the number of the result")?;
        match u16::try_from(port) {
            Ok(port) if usize::from(port) < count => Ok(Value { node, port }),
            _ => Err(self.error(at, format!("this op has {count} results, numbered from 0"))),
        }
    }

    // Statements.

    /// `%0 = relu(%x) {..} : f32[N]  // loc: ..`
    fn statement(&mut self, graph: &mut Graph, scope: &mut Scope) -> Parsed<()> {
        self.new_line()?;
        let name_span = self.span();
        let name = self.value_name()?;
        let count = if self.eat(':') { Some((self.span(), self.count("the number of results")?)) } else { None };
        self.expect('=')?;
        let op_span = self.span();
        let op_name = self.ident("an op name")?;
        let node = match op_name {
            "weight" => self.weight(graph)?,
            "constant" => self.constant(graph)?,
            _ => self.op(graph, scope, op_name, op_span)?,
        };
        graph.node_mut(node).loc = self.loc();
        let results = graph.node(node).outputs.len();
        match count {
            Some((span, count)) if count != results => {
                return Err(self.error(span, format!("this op has {results} results")));
            }
            None if results != 1 => {
                let help = format!("write %name:{results} = ..");
                return Err(self.error(name_span, format!("this op has {results} results")).with_help(help));
            }
            _ => {}
        }
        self.define(scope, name, name_span, node)
    }

    fn weight(&mut self, graph: &mut Graph) -> Parsed<NodeId> {
        let name = self.symbol("the name of the weight, such as @\"fc.weight\"")?;
        self.expect(':')?;
        let ty = self.ty()?;
        Ok(graph.add_leaf(Op::Weight { name, data: None }, ty).node)
    }

    fn constant(&mut self, graph: &mut Graph) -> Parsed<NodeId> {
        let span = self.span();
        let scalar = !self.eat('[');
        let elements = if scalar { vec![self.literal()?] } else { self.list(']', Self::literal)? };
        self.expect(':')?;
        let type_span = self.span();
        let ty = self.ty()?;
        let Some(shape) = ty.const_shape() else {
            return Err(self.error(type_span, "a constant has a constant shape"));
        };
        if scalar != shape.is_empty() {
            let help = "a scalar is written bare: 1.0 : f32[]; the elements of all else in [ ]";
            return Err(self.error(span, format!("this is no {}", type_text(&ty))).with_help(help));
        }
        let numel = shape.iter().try_fold(1usize, |acc, d| acc.checked_mul(*d));
        if numel != Some(elements.len()) {
            let message = format!("{} elements for {}", elements.len(), type_text(&ty));
            return Err(self.error(span, message));
        }
        let mut bytes = Vec::with_capacity(elements.len() * ty.dtype.size());
        for element in &elements {
            element.write(ty.dtype, &mut bytes).map_err(|message| self.error(element.span, message))?;
        }
        match Tensor::new(ty.dtype, shape, bytes) {
            Some(value) => Ok(graph.add_leaf(Op::Constant { value }, ty).node),
            None => Err(self.error(span, format!("these elements are no {}", type_text(&ty)))),
        }
    }

    fn op(&mut self, graph: &mut Graph, scope: &Scope, name: &str, span: Span) -> Parsed<NodeId> {
        let operands = if self.eat('(') { self.list(')', |p| p.operand(graph, scope))? } else { Vec::new() };
        if operands.len() > MAX_OPERANDS {
            return Err(self.error(span, format!("more than {MAX_OPERANDS} operands")));
        }
        let attrs = if self.eat('{') { self.list('}', Self::attribute)? } else { Vec::new() };
        let mut seen = HashSet::new();
        if let Some((_, _, twice)) = attrs.iter().find(|(name, _, _)| !seen.insert(name.as_str())) {
            return Err(self.error(*twice, "this attribute is given twice"));
        }
        let spans: Vec<(String, Span)> = attrs.iter().map(|(name, _, span)| (name.clone(), *span)).collect();
        let attrs: Vec<(String, Attr)> = attrs.into_iter().map(|(name, attr, _)| (name, attr)).collect();
        let op = if name == "fused" {
            let body = self.deeper(Self::graph)?;
            if body.outputs().len() > MAX_OPERANDS {
                return Err(self.error(span, format!("more than {MAX_OPERANDS} results")));
            }
            let kernel = match attrs.as_slice() {
                [] => String::new(),
                [(name, Attr::Str(kernel))] if name == "kernel" => kernel.clone(),
                _ => return Err(self.error(span, "the one attribute of 'fused' is kernel, a quoted text")),
            };
            Op::Fused(Arc::new(Fused { body, kernel }))
        } else {
            Op::from_parts(name, &attrs).map_err(|e| {
                let at = spans.iter().find(|(n, _)| Some(n.as_str()) == e.attr()).map_or(span, |(_, s)| *s);
                let error = self.error(at, e.to_string());
                match e.help() {
                    Some(help) => error.with_help(help),
                    None => error,
                }
            })?
        };
        let node = graph
            .add_node(op, &operands, Loc::default())
            .map_err(|InferError { op, message }| self.error(span, format!("{op}: {message}")))?;
        if self.eat(':') {
            let at = self.span();
            let stated = if self.eat('(') { self.list(')', Self::ty)? } else { vec![self.ty()?] };
            let inferred = &graph.node(node).outputs;
            if *inferred != stated {
                let types: Vec<String> = inferred.iter().map(type_text).collect();
                let at = Span { start: at.start, end: self.previous().span.end };
                return Err(self.error(at, format!("the result of '{name}' is {}", types.join(", "))));
            }
        }
        Ok(node)
    }
}
