//! The tree against greedy ascent and random draws, on landscapes of the shapes that kernels' parameters have.

use std::collections::BTreeSet;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::landscape::{axis, offer};
use crate::search::policy::Policy;
use crate::search::tree::{Outcome, Space, Tree};

type Height = fn(&[usize]) -> Option<f64>;

struct Landscape {
    name: &'static str,
    axes: usize,
    values: usize,
    height: Height,
}

const LANDSCAPES: &[Landscape] = &[
    Landscape { name: "slope", axes: 4, values: 8, height: slope },
    Landscape { name: "two hills", axes: 3, values: 10, height: two_hills },
    Landscape { name: "cache", axes: 4, values: 8, height: cache },
    Landscape { name: "rugged", axes: 4, values: 7, height: rugged },
    Landscape { name: "islands", axes: 4, values: 7, height: islands },
];

fn distance(point: &[usize], to: &[usize]) -> f64 {
    point.iter().zip(to).map(|(a, b)| a.abs_diff(*b) as f64).sum()
}

/// One optimum; a sixth of the points fails.
fn slope(point: &[usize]) -> Option<f64> {
    let fails = point[0] % 3 == 1 && point[1] % 2 == 1;
    (!fails).then(|| 3.0 / (1.0 + 0.15 * distance(point, &[5, 2, 6, 3])))
}

/// A broad hill of 1.5 at the default, the peak of 3 on the far side of a valley of slow kernels.
fn two_hills(point: &[usize]) -> Option<f64> {
    Some((1.5 - 0.15 * distance(point, &[0, 0, 0])).max(3.0 - 0.3 * distance(point, &[9, 9, 9])).max(0.4))
}

/// Tiles of two powers must fill a cache and not overflow it; two more axes matter little.
fn cache(point: &[usize]) -> Option<f64> {
    let filled = point[0] as f64 + point[1] as f64 - 9.0;
    if filled > 2.0 {
        return None;
    }
    let square = (point[0] as f64 - point[1] as f64).abs();
    let rest = 1.0 - 0.03 * (point[2] as f64 - 5.0).abs() - 0.02 * (point[3] as f64 - 2.0).abs();
    Some(2.5 * rest / (1.0 + 0.2 * filled.abs() + 0.08 * (square - 1.0).abs()))
}

/// A slope under noise that is a function of the point.
fn rugged(point: &[usize]) -> Option<f64> {
    let hash = point.iter().fold(0x9e37_79b9_u64, |h, p| (h ^ *p as u64).wrapping_mul(0x0100_0000_01b3) ^ (h >> 29));
    let noise = (hash % 1000) as f64 / 1000.0;
    Some(2.2 - 0.1 * distance(point, &[4, 1, 5, 3]) + 0.35 * noise)
}

/// Most points fail; what works lies in lines, the best line away from the default.
fn islands(point: &[usize]) -> Option<f64> {
    let works = (point[0] + point[1]).is_multiple_of(3) && point[2] != 1;
    works.then(|| 2.4 - 0.12 * distance(point, &[3, 3, 5, 4]))
}

fn points(landscape: &Landscape) -> Vec<Vec<usize>> {
    let mut all = vec![vec![]];
    for _ in 0..landscape.axes {
        all = all.iter().flat_map(|p| (0..landscape.values).map(move |v| [p.as_slice(), &[v]].concat())).collect();
    }
    all
}

fn optimum(landscape: &Landscape) -> f64 {
    points(landscape).iter().filter_map(|point| (landscape.height)(point)).fold(0.0, f64::max)
}

fn by_tree(landscape: &Landscape, policy: Policy, seed: u64, goal: f64) -> usize {
    const NAMES: [&str; 4] = ["a", "b", "c", "d"];
    let axes = NAMES[..landscape.axes].iter().map(|name| axis(name, landscape.values)).collect();
    let space = Space { share: 0.5, headroom: None, offers: vec![offer("template/t", axes)] };
    let mut tree = Tree::new(vec![space], policy, seed);
    let mut count = 0;
    while let Some(choice) = tree.select() {
        count += 1;
        let height = (landscape.height)(&choice.point);
        if height.is_some_and(|height| height >= goal) {
            break;
        }
        let outcome = match height {
            Some(ratio) => Outcome::Measured { candidate: String::new(), ratio, accepted: ratio > 1.0 },
            None => Outcome::Failed { reason: "fails".into() },
        };
        tree.record(choice, outcome);
    }
    count
}

fn by_random(landscape: &Landscape, seed: u64, goal: f64) -> usize {
    let mut random = StdRng::seed_from_u64(seed);
    let mut left = points(landscape);
    let mut count = 0;
    while !left.is_empty() {
        count += 1;
        let point = left.swap_remove(random.random_range(0..left.len()));
        if (landscape.height)(&point).is_some_and(|height| height >= goal) {
            break;
        }
    }
    count
}

/// Steepest ascent over points that differ on one axis, from the default, then from random points; nothing is evaluated twice.
fn by_greedy(landscape: &Landscape, seed: u64, goal: f64) -> usize {
    let mut random = StdRng::seed_from_u64(seed);
    let mut seen = BTreeSet::new();
    let mut at = vec![0; landscape.axes];
    let height = |point: &[usize]| (landscape.height)(point).unwrap_or(0.0);
    loop {
        seen.insert(at.clone());
        loop {
            let mut best = at.clone();
            for i in 0..landscape.axes {
                for value in 0..landscape.values {
                    let mut next = at.clone();
                    next[i] = value;
                    seen.insert(next.clone());
                    if height(&next) >= goal {
                        return seen.len();
                    }
                    if height(&next) > height(&best) {
                        best = next;
                    }
                }
            }
            if best == at {
                break;
            }
            at = best;
        }
        at = (0..landscape.axes).map(|_| random.random_range(0..landscape.values)).collect();
    }
}

fn mean(counts: impl Iterator<Item = usize>) -> f64 {
    let counts: Vec<usize> = counts.collect();
    counts.iter().sum::<usize>() as f64 / counts.len() as f64
}

#[test]
fn the_tree_needs_half_of_what_random_draws_need() {
    for landscape in LANDSCAPES {
        let goal = optimum(landscape);
        let tree = mean((0..16).map(|seed| by_tree(landscape, Policy::default(), seed, goal)));
        let random = mean((0..16).map(|seed| by_random(landscape, seed, goal)));
        assert!(tree <= 0.5 * random, "{}: {tree} of {random}", landscape.name);
    }
}

/// Not on all: ascent along whole axes is at its best on two hills and on islands, whose optima lie on lines from the default.
#[test]
fn the_tree_needs_less_than_steepest_ascent_where_slopes_lead_somewhere() {
    for landscape in LANDSCAPES.iter().filter(|landscape| ["slope", "cache", "rugged"].contains(&landscape.name)) {
        let goal = optimum(landscape);
        let tree = mean((0..16).map(|seed| by_tree(landscape, Policy::default(), seed, goal)));
        let greedy = mean((0..16).map(|seed| by_greedy(landscape, seed, goal)));
        assert!(tree <= greedy, "{}: {tree} of {greedy}", landscape.name);
    }
}
