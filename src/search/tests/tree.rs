use std::collections::BTreeSet;

use super::landscape::{axis, offer};
use crate::search::policy::Policy;
use crate::search::tree::{Choice, Offer, Outcome, Point, Space, Tree};

fn space(share: f64, offers: Vec<Offer>) -> Space {
    Space { share, headroom: None, offers }
}

fn measured(ratio: f64) -> Outcome {
    Outcome::Measured { candidate: format!("{ratio}"), ratio, accepted: ratio > 1.0 }
}

fn failed() -> Outcome {
    Outcome::Failed { reason: "wrong".into() }
}

fn key(choice: &Choice) -> (usize, usize, Point) {
    (choice.region, choice.offer, choice.point.clone())
}

/// Runs to the end; the choices in order.
fn exhaust(tree: &mut Tree, landscape: impl Fn(&Choice) -> Outcome) -> Vec<(usize, usize, Point)> {
    let mut order = Vec::new();
    while let Some(choice) = tree.select() {
        order.push(key(&choice));
        let outcome = landscape(&choice);
        tree.record(choice, outcome);
    }
    order
}

/// Evaluations until the ratio reaches `goal`.
fn evaluations_to(
    goal: f64,
    seed: u64,
    axes: usize,
    values: usize,
    landscape: &dyn Fn(&[usize]) -> Option<f64>,
) -> usize {
    const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
    let axes = NAMES[..axes].iter().map(|name| axis(name, values)).collect();
    let mut tree = Tree::new(vec![space(0.5, vec![offer("template/t", axes)])], Policy::default(), seed);
    let mut count = 0;
    while let Some(choice) = tree.select() {
        count += 1;
        let ratio = landscape(&choice.point);
        if ratio.is_some_and(|ratio| ratio >= goal) {
            return count;
        }
        tree.record(choice, ratio.map_or_else(failed, measured));
    }
    panic!("the goal is not in the space");
}

fn mixed(choice: &Choice) -> Outcome {
    match choice.point.iter().sum::<usize>() % 3 {
        0 => measured(1.0 + 0.1 * choice.point[0] as f64),
        1 => failed(),
        _ => measured(0.7),
    }
}

#[test]
fn every_point_is_chosen_once_failed_or_not() {
    let offers = || vec![offer("template/a", vec![axis("x", 4), axis("y", 3)]), offer("user/b", vec![])];
    let mut tree = Tree::new(vec![space(0.5, offers()), space(0.1, offers())], Policy::default(), 3);
    let order = exhaust(&mut tree, |choice| if choice.offer == 1 { failed() } else { mixed(choice) });
    let distinct: BTreeSet<_> = order.iter().collect();
    assert_eq!(distinct.len(), order.len(), "chosen twice");
    assert_eq!(order.len(), 2 * (4 * 3 + 1));
    assert_eq!(tree.select(), None);
    assert_eq!(tree.in_flight(), 0);
    let reasons = tree.tried().filter(|tried| matches!(tried.outcome, Outcome::Failed { reason } if reason == "wrong"));
    assert_eq!(reasons.count(), 2 * (4 + 1), "failures are kept with their reason");
    assert_eq!(tree.tried().count(), order.len());
}

#[test]
fn the_planted_optimum_is_found_long_before_the_space_is_exhausted() {
    // 4,096 points; the best is far from the default, a third of the space fails, slopes lead to the optimum.
    let optimum = [5_usize, 2, 6, 3];
    let landscape = |point: &[usize]| {
        let distance: usize = point.iter().zip(optimum).map(|(a, b)| a.abs_diff(b)).sum();
        let fails = point[0] % 3 == 1 && point[1] % 2 == 1;
        (!fails).then(|| 3.0 / (1.0 + 0.15 * distance as f64))
    };
    let counts: Vec<usize> = (0..20).map(|seed| evaluations_to(3.0, seed, 4, 8, &landscape)).collect();
    assert!(counts.iter().all(|count| *count <= 4096 / 8), "{counts:?}");
}

#[test]
fn a_local_optimum_at_the_default_is_left() {
    // A broad hill of 1.5 around the default; the peak of 3.0 on the far side of a valley of slow kernels.
    let landscape = |point: &[usize]| {
        let at_default = point.iter().sum::<usize>() as f64;
        let at_peak: f64 = point.iter().zip([9_usize, 9, 9]).map(|(a, b)| a.abs_diff(b) as f64).sum();
        Some((1.5 - 0.15 * at_default).max(3.0 - 0.3 * at_peak).max(0.4))
    };
    let counts: Vec<usize> = (0..20).map(|seed| evaluations_to(3.0, seed, 3, 10, &landscape)).collect();
    let mean = counts.iter().sum::<usize>() / counts.len();
    assert!(mean < 500, "random needs 500 of 1,000 on average: {mean}, {counts:?}");
}

#[test]
fn equal_seeds_choose_alike_and_others_differ() {
    let run = |seed| {
        let offers = vec![offer("template/a", vec![axis("x", 5), axis("y", 5), axis("z", 5)])];
        exhaust(&mut Tree::new(vec![space(0.5, offers)], Policy::default(), seed), mixed)
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

#[test]
fn regions_come_in_the_order_of_what_they_can_gain() {
    let offers = || vec![offer("template/a", vec![axis("x", 6)])];
    let spaces = [0.1, 0.6, 0.2].map(|share| space(share, offers()));
    let mut tree = Tree::new(spaces.to_vec(), Policy::default(), 0);
    let first = tree.select().unwrap();
    assert_eq!((first.region, first.point.clone()), (1, vec![0]));
    tree.record(first, failed());
    let mut second = space(0.6, offers());
    second.headroom = Some(1.01);
    let mut tree = Tree::new(vec![second, space(0.2, offers())], Policy::default(), 0);
    assert_eq!(tree.select().unwrap().region, 1, "the first one's roofline is reached");
}

#[test]
fn attention_moves_on_from_a_region_that_gains_no_more() {
    let offers = || vec![offer("template/a", vec![axis("x", 40), axis("y", 40)])];
    let mut tree = Tree::new(vec![space(0.5, offers()), space(0.3, offers())], Policy::default(), 1);
    let mut visits = [0, 0];
    for _ in 0..60 {
        let choice = tree.select().unwrap();
        visits[choice.region] += 1;
        // The larger region is done at once, the smaller one keeps getting better.
        let ratio = if choice.region == 0 { 2.0 } else { 1.2 + 0.02 * f64::from(visits[1]) };
        tree.record(choice, measured(ratio));
    }
    assert!(visits[1] > visits[0], "{visits:?}");
}

#[test]
fn the_default_comes_first_then_what_is_near() {
    let mut tree = Tree::new(
        vec![space(0.5, vec![offer("template/a", vec![axis("x", 9), axis("y", 9)])])],
        Policy { spread: 0.0, ..Policy::default() },
        5,
    );
    // Nothing is right, so nothing is refined: distance from the default never falls.
    let order = exhaust(&mut tree, |_| failed());
    let distances: Vec<usize> = order.iter().map(|(_, _, point)| point.iter().sum()).collect();
    assert_eq!(distances[0], 0);
    assert!(distances.is_sorted(), "{distances:?}");
    assert_eq!(order.len(), 81);
}

#[test]
fn a_refined_point_names_its_parent_and_differs_on_one_axis() {
    let mut tree =
        Tree::new(vec![space(0.5, vec![offer("template/a", vec![axis("x", 5), axis("y", 5)])])], Policy::default(), 5);
    let mut refined = 0;
    while let Some(choice) = tree.select() {
        if let Some(parent) = &choice.parent {
            let known = tree
                .tried()
                .find(|tried| matches!(tried.outcome, Outcome::Measured { candidate, .. } if candidate == parent))
                .unwrap();
            assert_eq!(known.point.iter().zip(&choice.point).filter(|(a, b)| a != b).count(), 1);
            refined += 1;
        }
        let ratio = 1.5 + 0.1 * choice.point[0] as f64 + 0.011 * choice.point[1] as f64;
        tree.record(choice, measured(ratio));
    }
    assert!(refined > 5, "{refined}");
}

#[test]
fn choices_in_flight_are_distinct_and_spread() {
    let offers = || vec![offer("template/a", vec![axis("x", 3), axis("y", 3)])];
    let mut tree = Tree::new(vec![space(0.4, offers()), space(0.3, offers())], Policy::default(), 2);
    let mut flying = Vec::new();
    while let Some(choice) = tree.select() {
        flying.push(choice);
    }
    assert_eq!(flying.len(), 18, "nothing is measured, so only the defaults' order is known, and all of it may fly");
    assert_eq!(tree.in_flight(), 18);
    let distinct: BTreeSet<_> = flying.iter().map(key).collect();
    assert_eq!(distinct.len(), 18);
    assert_eq!(flying[..4].iter().map(|choice| choice.region).collect::<BTreeSet<_>>().len(), 2, "virtual loss");
    while let Some(choice) = flying.pop() {
        tree.record(choice, measured(1.5));
    }
    assert_eq!((tree.select(), tree.in_flight(), tree.visits()), (None, 0, 18));
}

#[test]
fn nothing_to_choose_from_is_no_fault() {
    assert_eq!(Tree::new(vec![], Policy::default(), 0).select(), None);
    assert_eq!(Tree::new(vec![space(0.5, vec![])], Policy::default(), 0).select(), None);
    let empty = vec![offer("template/a", vec![axis("x", 0), axis("y", 2)])];
    assert_eq!(Tree::new(vec![space(0.5, empty)], Policy::default(), 0).select(), None);
}
