//! The search tree: root -> region -> strategy -> point, and from a point whose kernel is right to points that change one axis of it.
//!
//! A pure state machine: [`Tree::select`] gives the next point to try and marks it as in flight (virtual loss), and
//! [`Tree::record`] takes what came of it, in any order. Nothing here runs, waits or reads a clock, so evaluations may overlap.
//! Equal seeds and equal outcomes give equal trees. A node that failed stays, with its reason, and is never chosen again.

use std::collections::{BTreeSet, VecDeque};

use forge_kernels::templates::Axis;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::policy::{NEUTRAL, Policy, Range, reward};

/// A way to make kernels for a region, and its space; no axes are one point.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offer {
    pub strategy: String,
    pub axes: Vec<Axis>,
}

/// What the tree knows of a region.
#[derive(Clone, PartialEq, Debug)]
pub struct Space {
    /// Of the whole graph's time, all occurrences together, in [0, 1].
    pub share: f64,
    /// How many times faster the roofline lets it be, if known.
    pub headroom: Option<f64>,
    /// The most promising first.
    pub offers: Vec<Offer>,
}

/// A node of the tree.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeIndex(usize);

const ROOT: NodeIndex = NodeIndex(0);
/// Gains of reward below this (1/20 % of the graph's time) are not told apart.
const LEAST_GAIN: f64 = 1e-4;
/// Attempts at a random point before the nearest to the default is taken instead.
const DRAWS: usize = 8;

/// Indices into the values of each axis.
pub type Point = Vec<usize>;

/// A point to try, to be handed back to [`Tree::record`] once. No clone, so that it cannot be recorded twice.
#[derive(PartialEq, Eq, Debug)]
pub struct Choice {
    node: NodeIndex,
    /// Index of the region.
    pub region: usize,
    /// Index of the region's offer.
    pub offer: usize,
    pub point: Point,
    /// Hash of the candidate that this refines.
    pub parent: Option<String>,
}

/// What came of a point.
#[derive(Clone, PartialEq, Debug)]
pub enum Outcome {
    /// Correct and timed. `ratio` is the baseline's time over the candidate's.
    Measured {
        candidate: String,
        ratio: f64,
        accepted: bool,
    },
    Failed {
        reason: String,
    },
}

/// A tried point, for reports.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Tried<'a> {
    pub region: usize,
    pub offer: usize,
    pub point: &'a Point,
    pub outcome: &'a Outcome,
}

#[derive(Clone, Debug)]
enum Kind {
    Root,
    Region,
    /// Points not yet in the tree, nearest to the default first; ties in random order.
    Strategy {
        offer: usize,
        frontier: BTreeSet<(usize, u32, Point)>,
    },
    /// Neighbours not yet in the tree, the nearest first.
    Point {
        offer: usize,
        point: Point,
        neighbours: VecDeque<(usize, Point)>,
        outcome: Option<Outcome>,
    },
}

#[derive(Clone, Debug)]
struct Node {
    parent: NodeIndex,
    region: usize,
    kind: Kind,
    prior: f64,
    children: Vec<NodeIndex>,
    /// Whether something below, or a new child, may be chosen. True too long at times, never false too long.
    open: bool,
    visits: u32,
    in_flight: u32,
    /// Visits that ended in a measurement, the sum of their rewards, and the best.
    measured: u32,
    total: f64,
    best: f64,
    /// Points only: the reward of the point itself.
    own: f64,
    /// Visits since the best last rose.
    stale: u32,
}

#[derive(Clone, Debug, Default)]
struct RegionProgress {
    range: Range,
    /// Gain over [`NEUTRAL`] of the best accepted kernel.
    best_gain: f64,
    /// What a visit lately added to it: a moving average, which begins with the region's potential.
    recent_gain: f64,
    /// For each offer: the points in the tree, and each value's place among the values of its axis in numeric order.
    claimed: Vec<BTreeSet<Point>>,
    ranks: Vec<Vec<Vec<usize>>>,
}

/// The tree. Cost of a choice: O(depth x children); memory: O(points tried x axes).
#[derive(Debug)]
pub struct Tree {
    policy: Policy,
    random: StdRng,
    spaces: Vec<Space>,
    regions: Vec<RegionProgress>,
    nodes: Vec<Node>,
}

enum Step {
    Descend(NodeIndex),
    Take(NodeIndex),
    Close,
}

impl Tree {
    #[must_use]
    pub fn new(spaces: Vec<Space>, policy: Policy, seed: u64) -> Tree {
        let mut tree = Tree {
            policy,
            random: StdRng::seed_from_u64(seed),
            regions: Vec::new(),
            nodes: Vec::new(),
            spaces: Vec::new(),
        };
        tree.add(ROOT, 0, Kind::Root, 1.0);
        for (region, space) in spaces.iter().enumerate() {
            let potential = policy.potential(space.share, space.headroom);
            // A region whose time is unknown is still worth a look, after all others.
            let node = tree.add(ROOT, region, Kind::Region, potential.max(1e-6));
            for (offer, Offer { axes, .. }) in space.offers.iter().enumerate() {
                let prior = policy.distance_prior(offer) * tree.jittered();
                // An axis without values leaves nothing to choose.
                let empty = axes.iter().any(|axis| axis.values.is_empty());
                let frontier = if empty { BTreeSet::new() } else { BTreeSet::from([(0, 0, vec![0; axes.len()])]) };
                tree.add(node, region, Kind::Strategy { offer, frontier }, prior);
            }
            tree.regions.push(RegionProgress {
                range: Range::default(),
                best_gain: 0.0,
                recent_gain: potential,
                claimed: vec![BTreeSet::new(); space.offers.len()],
                ranks: space.offers.iter().map(|o| o.axes.iter().map(ranks).collect()).collect(),
            });
        }
        tree.spaces = spaces;
        tree
    }

    /// The next point to try; `None` if all that is left is in flight, or nothing is left (see [`Tree::in_flight`]).
    pub fn select(&mut self) -> Option<Choice> {
        let mut at = ROOT;
        while self.node(ROOT).open {
            match self.step(at) {
                Step::Descend(child) => at = child,
                Step::Take(node) => return Some(self.take(node)),
                Step::Close => {
                    self.node_mut(at).open = false;
                    at = ROOT;
                }
            }
        }
        None
    }

    /// What came of a choice. A measured point may be refined from now on.
    pub fn record(&mut self, choice: Choice, outcome: Outcome) {
        let Choice { node, region, offer, point, .. } = choice;
        let (mut gain, mut measured, mut near) = (0.0, None, VecDeque::new());
        if let Outcome::Measured { ratio, accepted, .. } = &outcome {
            let value = reward(self.spaces[region].share, *ratio);
            let progress = &mut self.regions[region];
            progress.range.widen(value);
            measured = Some(value);
            if *accepted {
                gain = (value - NEUTRAL - progress.best_gain).max(0.0);
                progress.best_gain += gain;
            }
            near = self.neighbours(region, offer, &point);
        }
        let progress = &mut self.regions[region];
        progress.recent_gain += self.policy.gain_memory * (gain - progress.recent_gain);
        let opens = !near.is_empty();
        if let Kind::Point { neighbours, outcome: slot, .. } = &mut self.node_mut(node).kind {
            *neighbours = near;
            *slot = Some(outcome);
        }
        self.node_mut(node).own = measured.unwrap_or(0.0);
        let mut at = node;
        loop {
            let step = self.node_mut(at);
            step.in_flight = step.in_flight.saturating_sub(1);
            step.visits += 1;
            step.stale += 1;
            if let Some(value) = measured {
                step.measured += 1;
                step.total += value;
                if value > step.best {
                    (step.best, step.stale) = (value, 0);
                }
            }
            step.open |= opens;
            if at == ROOT {
                break;
            }
            at = step.parent;
        }
    }

    /// Choices handed out and not yet recorded.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.node(ROOT).in_flight
    }

    /// Recorded choices.
    #[must_use]
    pub fn visits(&self) -> u32 {
        self.node(ROOT).visits
    }

    /// Every recorded point, failed ones included, in the order of first choice.
    pub fn tried(&self) -> impl Iterator<Item = Tried<'_>> {
        self.nodes.iter().filter_map(|node| match &node.kind {
            Kind::Point { offer, point, outcome: Some(outcome), .. } => {
                Some(Tried { region: node.region, offer: *offer, point, outcome })
            }
            _ => None,
        })
    }

    fn node(&self, index: NodeIndex) -> &Node {
        &self.nodes[index.0]
    }

    fn node_mut(&mut self, index: NodeIndex) -> &mut Node {
        &mut self.nodes[index.0]
    }

    fn add(&mut self, parent: NodeIndex, region: usize, kind: Kind, prior: f64) -> NodeIndex {
        let index = NodeIndex(self.nodes.len());
        // A point opens once it is measured.
        let open = !matches!(kind, Kind::Point { .. });
        self.nodes.push(Node {
            parent,
            region,
            kind,
            prior,
            children: Vec::new(),
            open,
            visits: 0,
            in_flight: 0,
            measured: 0,
            total: 0.0,
            best: 0.0,
            own: 0.0,
            stale: 0,
        });
        if index != ROOT {
            self.node_mut(parent).children.push(index);
        }
        index
    }

    fn jittered(&mut self) -> f64 {
        1.0 + self.policy.jitter * (2.0 * self.random.random::<f64>() - 1.0)
    }

    fn step(&mut self, at: NodeIndex) -> Step {
        let node = self.node(at);
        let best = self.best_child(at);
        let visits = node.visits + node.in_flight;
        // A refinement that is better than what it refines is followed up before its siblings are tried.
        let follows =
            matches!(node.kind, Kind::Point { .. }) && best.is_none_or(|child| self.node(child).best <= node.own);
        let wants_more = follows || node.children.len() < self.policy.width(visits);
        if (best.is_none() || wants_more)
            && let Some((offer, distance, point)) = self.next_point(at)
        {
            let region = self.node(at).region;
            self.regions[region].claimed[offer].insert(point.clone());
            let prior = self.policy.distance_prior(distance) * self.jittered();
            let kind = Kind::Point { offer, point, neighbours: VecDeque::new(), outcome: None };
            return Step::Take(self.add(at, region, kind, prior));
        }
        best.map_or(Step::Close, Step::Descend)
    }

    /// The open child of the greatest score; the first of equals.
    fn best_child(&self, at: NodeIndex) -> Option<NodeIndex> {
        let node = self.node(at);
        let priors: f64 = node.children.iter().map(|child| self.node(*child).prior).sum();
        let visits = node.visits + node.in_flight;
        let mut best: Option<(f64, NodeIndex)> = None;
        for index in &node.children {
            let child = self.node(*index);
            if !child.open {
                continue;
            }
            let prior = child.prior / priors;
            let score = self.policy.score(self.value(child), prior, visits, child.visits + child.in_flight);
            if best.is_none_or(|(greatest, _)| score > greatest) {
                best = Some((score, *index));
            }
        }
        best.map(|(_, index)| index)
    }

    /// In [0, 1]. Regions compete by how much a visit lately raised the whole graph's speed-up, whatever is below a region by how
    /// good its kernels are and whether they still get better. A visit in flight counts as one that brought nothing.
    fn value(&self, node: &Node) -> f64 {
        let visits = node.visits + node.in_flight;
        let landed = if visits == 0 { 1.0 } else { f64::from(node.visits) / f64::from(visits) };
        let progress = &self.regions[node.region];
        if let Kind::Region = node.kind {
            let greatest = self.regions.iter().map(|region| region.recent_gain).fold(LEAST_GAIN, f64::max);
            return landed * progress.recent_gain / greatest;
        }
        match (node.visits, node.measured) {
            (0, _) => landed,
            (_, 0) => 0.0,
            (visits, measured) => {
                let mean =
                    progress.range.scale(node.total / f64::from(measured)) * f64::from(measured) / f64::from(visits);
                let fresh = 1.0 / (1.0 + f64::from(node.stale) / self.policy.patience);
                let weight = self.policy.best_weight;
                landed * ((1.0 - weight) * mean + weight * progress.range.scale(node.best) * fresh)
            }
        }
    }

    /// The next point that may be added below a node, with its offer and its distance.
    fn next_point(&mut self, at: NodeIndex) -> Option<(usize, usize, Point)> {
        let Tree { nodes, regions, spaces, random, policy, .. } = self;
        let node = &mut nodes[at.0];
        match &mut node.kind {
            Kind::Root | Kind::Region => None,
            Kind::Strategy { offer, frontier } => {
                let axes = &spaces[node.region].offers[*offer].axes;
                let claimed = &regions[node.region].claimed[*offer];
                // A broad hill around the default must not hide what is far from it.
                if !claimed.is_empty() && random.random::<f64>() < policy.spread {
                    for _ in 0..DRAWS {
                        let point: Point = axes.iter().map(|axis| random.random_range(0..axis.values.len())).collect();
                        if !claimed.contains(&point) {
                            return Some((*offer, 0, point));
                        }
                    }
                }
                while let Some((distance, _, point)) = frontier.pop_first() {
                    // Every point but the default is reached from one other: the one with its last non-zero axis one less.
                    let last = point.iter().rposition(|index| *index > 0).unwrap_or(0);
                    for (i, axis) in axes.iter().enumerate().skip(last) {
                        let mut further = point.clone();
                        further[i] += 1;
                        if further[i] < axis.values.len() {
                            frontier.insert((distance + 1, random.random(), further));
                        }
                    }
                    if !claimed.contains(&point) {
                        return Some((*offer, distance, point));
                    }
                }
                None
            }
            Kind::Point { offer, neighbours, .. } => {
                while let Some((distance, point)) = neighbours.pop_front() {
                    if !regions[node.region].claimed[*offer].contains(&point) {
                        return Some((*offer, distance, point));
                    }
                }
                None
            }
        }
    }

    /// Points that differ from this one on one axis, the nearest values first, in random order of equals.
    fn neighbours(&mut self, region: usize, offer: usize, point: &Point) -> VecDeque<(usize, Point)> {
        let progress = &self.regions[region];
        let mut near = Vec::new();
        for (i, ranks) in progress.ranks[offer].iter().enumerate() {
            for (value, rank) in ranks.iter().enumerate().filter(|(value, _)| *value != point[i]) {
                let mut other = point.clone();
                other[i] = value;
                if !progress.claimed[offer].contains(&other) {
                    near.push((rank.abs_diff(ranks[point[i]]) - 1, self.random.random::<u32>(), other));
                }
            }
        }
        near.sort();
        near.into_iter().map(|(distance, _, point)| (distance, point)).collect()
    }

    /// Marks the path to a new point as in flight.
    fn take(&mut self, node: NodeIndex) -> Choice {
        let mut at = node;
        loop {
            let step = self.node_mut(at);
            step.in_flight += 1;
            if at == ROOT {
                break;
            }
            at = step.parent;
        }
        let taken = self.node(node);
        let parent = match &self.node(taken.parent).kind {
            Kind::Point { outcome: Some(Outcome::Measured { candidate, .. }), .. } => Some(candidate.clone()),
            _ => None,
        };
        let (offer, point) = match &taken.kind {
            Kind::Point { offer, point, .. } => (*offer, point.clone()),
            Kind::Root | Kind::Region | Kind::Strategy { .. } => (0, Point::new()),
        };
        Choice { node, region: taken.region, offer, point, parent }
    }
}

/// Each value's place among the values of its axis: by number if all are numbers, else as listed.
fn ranks(axis: &Axis) -> Vec<usize> {
    let numbers: Option<Vec<f64>> = axis.values.iter().map(|value| value.parse().ok()).collect();
    let mut order: Vec<usize> = (0..axis.values.len()).collect();
    if let Some(numbers) = numbers {
        order.sort_by(|a, b| numbers[*a].total_cmp(&numbers[*b]));
    }
    let mut ranks = vec![0; order.len()];
    for (rank, value) in order.into_iter().enumerate() {
        ranks[value] = rank;
    }
    ranks
}
