//! Which instance people want next, and for how long that is waited for: for one takeover.
//!
//! A preference decides who acquires, not who leaves: a preferred instance that cannot run the stream would otherwise
//! be handed it again and again. A handover names the epoch that is to leave.

use watchkeeper_core::Epoch;

use crate::group::control::Control;

/// The preference of a stream's control record, as one standby follows it. The record keeps the name; that it was heeded is seen by who
/// has had the stream since.
#[derive(Debug, Default)]
pub(super) struct Preference {
    name: Option<String>,
    /// The newest hand-over that was asked for.
    hand_over: Option<Epoch>,
    /// Whoever takes the stream under a newer epoch ends the preference.
    after: Epoch,
    is_over: bool,
    /// The newest epoch that is known of, and whose it is.
    newest: Epoch,
    newest_name: String,
}

impl Preference {
    /// Takes in what people want now.
    pub(super) fn apply(&mut self, control: &Control) {
        if self.name == control.preferred && self.hand_over == control.hand_over {
            return;
        }
        // A hand-over names the tenure that is to end; a mere preference is for the end of the current one.
        let asked = control.hand_over.filter(|epoch| Some(*epoch) > self.hand_over);
        self.after = asked.unwrap_or(self.newest);
        // The record still names whoever was preferred before, though that is the one who is asked to leave.
        self.is_over = asked.is_some() && control.preferred.as_ref() == Some(&self.newest_name);
        (self.name, self.hand_over) = (control.preferred.clone(), control.hand_over);
    }

    /// Takes in that `name` has the stream under `epoch`: the preference is over once the preferred instance has had it, and also when
    /// another one took it, since the preferred one was not there or did not come.
    pub(super) fn note_holder(&mut self, name: &str, epoch: Epoch) {
        if self.newest == Epoch::ZERO && self.hand_over.is_none() {
            // It was wanted before this instance looked for the first time, for whoever follows this holder.
            self.after = epoch;
        }
        if epoch > self.newest {
            (self.newest, self.newest_name) = (epoch, name.to_owned());
        }
        self.is_over |= self.name.as_deref() == Some(name) || epoch > self.after;
    }

    /// The instance that is preferred for the next takeover.
    pub(super) fn name(&self) -> Option<&str> {
        self.name.as_deref().filter(|_| !self.is_over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control(preferred: &str, hand_over: Option<u64>) -> Control {
        Control { preferred: Some(preferred.to_owned()), hand_over: hand_over.map(Epoch), ..Control::default() }
    }

    fn heeding(preferred: &str, hand_over: Option<u64>, before: &[(&str, u64)]) -> Preference {
        let mut preference = Preference::default();
        before.iter().for_each(|(name, epoch)| preference.note_holder(name, Epoch(*epoch)));
        preference.apply(&control(preferred, hand_over));
        preference
    }

    #[test]
    fn a_hand_over_is_done_when_anybody_has_a_newer_epoch() {
        for next in ["b", "c"] {
            let mut preference = heeding("b", Some(4), &[("a", 4)]);
            preference.note_holder("a", Epoch(4));
            assert_eq!(preference.name(), Some("b"), "a has not left yet");
            preference.note_holder(next, Epoch(5));
            assert_eq!(preference.name(), None);
        }
        // The next holder was seen before the wish.
        let mut preference = heeding("b", Some(4), &[("a", 4), ("c", 5)]);
        preference.note_holder("c", Epoch(5));
        assert_eq!(preference.name(), None);
    }

    #[test]
    fn whoever_is_asked_to_leave_is_not_preferred() {
        let mut preference = heeding("b", Some(4), &[("a", 4)]);
        preference.note_holder("b", Epoch(5));
        preference.apply(&control("b", Some(5)));
        assert_eq!(preference.name(), None);
    }

    #[test]
    fn a_preference_without_a_hand_over_is_for_the_end_of_the_current_tenure() {
        let mut preference = heeding("b", None, &[("a", 4)]);
        preference.note_holder("a", Epoch(4));
        assert_eq!(preference.name(), Some("b"));
        preference.note_holder("c", Epoch(5));
        assert_eq!(preference.name(), None);
        let mut preference = heeding("b", None, &[("b", 4)]);
        preference.note_holder("b", Epoch(4));
        assert_eq!(preference.name(), None, "it has it");
    }

    #[test]
    fn what_was_wanted_before_the_first_look_is_judged_by_who_has_it() {
        for (holder, expected) in [("a", Some("b")), ("b", None)] {
            let mut preference = heeding("b", None, &[]);
            preference.note_holder(holder, Epoch(4));
            assert_eq!(preference.name(), expected, "{holder}");
        }
        let mut preference = heeding("b", Some(3), &[]);
        preference.note_holder("c", Epoch(4));
        assert_eq!(preference.name(), None, "the hand-over was done");
    }

    #[test]
    fn another_request_is_applied_anew() {
        let mut preference = heeding("b", Some(4), &[("a", 4)]);
        preference.note_holder("b", Epoch(5));
        preference.apply(&control("b", Some(4)));
        assert_eq!(preference.name(), None, "it is still the same wish");
        preference.apply(&control("a", Some(5)));
        assert_eq!(preference.name(), Some("a"));
        preference.note_holder("a", Epoch(6));
        preference.note_holder("c", Epoch(7));
        preference.apply(&control("a", Some(7)));
        assert_eq!(preference.name(), Some("a"), "it is asked for again");
    }
}
