//! A group: what several sessions send to it at once reaches every member once, and all of them in one order, across
//! I/O threads. Who has left gets nothing more.

use std::convert::Infallible;
use std::io::Write;
use std::sync::{Arc, Mutex};

use tidegate::{CloseReason, Consumed, Flow, Group, Mail, Mailbox, Model, Outbox, Recipient, Session};

use crate::kit;

on_every_model!(case);

const MEMBERS: usize = 24;
const SPEAKERS: usize = 4;
const SAID: u8 = 50;

type SharedGroup = Arc<Mutex<Group>>;

/// Says each byte it hears to the group.
struct Member {
    room: SharedGroup,
    own: Option<Mailbox<Infallible>>,
}

impl Recipient for Member {
    /// Its mail is the room's only.
    type Message = Infallible;
}

impl Session for Member {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        let own = Self::mailbox(out);
        self.room.lock().expect("room").join(&own);
        self.own = Some(own);
        out.write(b"in");
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], _out: &mut Outbox<'_>) -> Consumed {
        let room = self.room.lock().expect("room");
        input.iter().for_each(|&byte| room.send(Arc::new(byte)).expect("room in the queues"));
        Consumed::all(input)
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        let Mail::Group(message) = mail else { return Flow::Abort };
        out.write(message.downcast_ref::<u8>().map_or(b"?", std::slice::from_ref));
        Flow::Continue
    }

    fn on_close(&mut self, _: CloseReason) {
        let own = self.own.take().expect("it was opened");
        assert!(self.room.lock().expect("room").leave(&own));
    }
}

fn case(model: Model) {
    let room = SharedGroup::default();
    let its = room.clone();
    let member = move || Member { room: its.clone(), own: None };
    let server = kit::serve(model, kit::policy(model), kit::sessions(member).speaking_first());
    let mut members: Vec<_> = (0..MEMBERS).map(|_| kit::connect(server.local_addr())).collect();
    members.iter_mut().for_each(|stream| assert_eq!(kit::hear(stream, 2), b"in"));
    assert_eq!(room.lock().expect("room").len(), MEMBERS);

    let speakers: Vec<_> = members[..SPEAKERS]
        .iter()
        .enumerate()
        .map(|(speaker, stream)| {
            let mut stream = stream.try_clone().expect("clone");
            std::thread::spawn(move || {
                for n in 0..SAID {
                    stream.write_all(&[speaker as u8 * SAID + n]).expect("send");
                }
            })
        })
        .collect();
    let all = SPEAKERS * usize::from(SAID);
    let heard: Vec<_> = members.iter_mut().map(|stream| kit::hear(stream, all)).collect();
    speakers.into_iter().for_each(|speaker| speaker.join().expect("speaker"));
    for others in &heard[1..] {
        assert_eq!(others, &heard[0], "one order for all");
    }
    for speaker in 0..SPEAKERS as u8 {
        let its: Vec<u8> = heard[0].iter().copied().filter(|byte| byte / SAID == speaker).collect();
        assert_eq!(its, (speaker * SAID..(speaker + 1) * SAID).collect::<Vec<_>>(), "once, and in order");
    }

    drop(members.split_off(MEMBERS / 2));
    kit::until("they have left", || room.lock().expect("room").len() == MEMBERS / 2);
    members[0].write_all(b"x").expect("send");
    members.iter_mut().for_each(|stream| assert_eq!(kit::hear(stream, 1), b"x"));
    drop(members);
    kit::until("all have left", || room.lock().expect("room").is_empty());
    let stats = kit::finish(server);
    assert_eq!(stats.closed_by(CloseReason::Aborted) + stats.closed_by(CloseReason::Panicked), 0);
}
