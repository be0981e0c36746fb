//! The gate.

/// That the gate itself accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Proof(());

impl Proof {
    /// Of a verdict read back from a worker or a journal, which a gate wrote.
    pub(crate) fn recorded() -> Proof {
        Proof(())
    }
}
