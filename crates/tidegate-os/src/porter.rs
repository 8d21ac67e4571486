//! Takes packets from one queue and passes them on to others, which may have no memory for one at the moment.

use std::io;
use std::ops::ControlFlow;
use std::thread::sleep;
use std::time::Duration;

/// The pause after a packet could not be taken or passed on.
const PAUSE: Duration = Duration::from_millis(10);

/// How often what is left at the end is tried once more.
const LAST_TRIES: u32 = 100;

/// Passes packets on until `take` breaks. `take` appends what is there, or comes within the timeout; `pass_on` returns
/// whether it was taken. What was not is kept, and tried again: nobody else has it.
pub(crate) fn carry<P>(
    mut take: impl FnMut(&mut Vec<P>, Option<Duration>) -> io::Result<ControlFlow<()>>,
    mut pass_on: impl FnMut(&P) -> bool,
) {
    let mut held = Vec::new();
    loop {
        let timeout = if held.is_empty() { None } else { Some(PAUSE) };
        let taken = take(&mut held, timeout).unwrap_or_else(|_| {
            sleep(PAUSE); // no memory to ask: the next call may fail at once, too
            ControlFlow::Continue(())
        });
        held.retain(|packet| !pass_on(packet));
        if taken.is_break() {
            break;
        }
    }
    for _ in 0..LAST_TRIES {
        if held.is_empty() {
            return;
        }
        sleep(PAUSE);
        held.retain(|packet| !pass_on(packet));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_packet_that_is_not_taken_is_tried_again_after_a_pause() {
        let mut steps = vec![(vec![], true), (vec![3], false), (vec![], false), (vec![1, 2], false)];
        let (mut timeouts, mut refusals, mut passed) = (Vec::new(), 2, Vec::new());
        carry(
            |into, timeout| {
                timeouts.push(timeout);
                let (packets, is_last) = steps.pop().expect("it has ended");
                into.extend(packets);
                Ok(if is_last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            },
            |&packet| {
                let is_refused = packet == 1 && refusals > 0;
                refusals -= i32::from(is_refused);
                passed.extend((!is_refused).then_some(packet));
                !is_refused
            },
        );
        assert_eq!(passed, [2, 1, 3]);
        assert_eq!(timeouts, [None, Some(PAUSE), Some(PAUSE), None]);
    }

    #[test]
    fn a_queue_that_cannot_be_asked_is_asked_once_in_each_pause() {
        let (mut asked, start) = (0, Instant::now());
        carry(
            |_: &mut Vec<()>, _| {
                asked += 1;
                if asked < 3 { Err(io::ErrorKind::OutOfMemory.into()) } else { Ok(ControlFlow::Break(())) }
            },
            |()| true,
        );
        assert!(start.elapsed() >= 2 * PAUSE, "{:?}", start.elapsed());
    }
}
