//! Choosing a model and setting limits: `cargo run -p tidegate --example choose_model`.
//!
//! Lists what works here, picks the best, and shows what a wrong policy says.

use std::time::Duration;

use tidegate::policy::OutboxMarks;
use tidegate::{Availability, Model, Policy};

fn main() {
    for &model in Model::ALL {
        match model.availability() {
            Availability::Available(how) => println!("{model:<13} yes  {how}"),
            Availability::Unavailable(why) => println!("{model:<13} no   {why}"),
        }
    }
    let choice = Model::best();
    println!("\nauto would take {}: {}", choice.model, choice.why);

    let policy = Policy::default()
        .max_connections(500)
        .idle_timeout(Some(Duration::from_secs(60)))
        .outbox(OutboxMarks::default().low(64 * 1024).high(32 * 1024));
    match policy.check() {
        Ok(()) => println!("the policy holds"),
        Err(e) => println!("a policy that cannot work says why: {e}"),
    }
}
