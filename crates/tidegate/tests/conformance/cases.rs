//! The conformance suite: one suite, every model.
//!
//! Each other file beside this one is a case, and reads as a sentence about what every model promises. It runs on each
//! of them under a deadline: `cargo test -p tidegate --test conformance half_close`, or `... ::epoll`.
//! The services are written against the public interface only; their peers are plain sockets of
//! the standard library. No case sleeps in order to wait: it waits for a condition ([`kit::until`]).

use libtest_mimic::Trial;

#[macro_use]
pub(crate) mod kit;

/// Each case is a file, and its tests are found.
macro_rules! cases {
    ($($(#[$condition:meta])? $case:ident,)*) => {
        $($(#[$condition])? pub(crate) mod $case;)*

        /// The tests of all cases.
        pub(crate) fn trials() -> Vec<Trial> {
            let mut all = Vec::new();
            $($(#[$condition])? all.extend($case::trials());)*
            all
        }
    };
}

cases! {
    a_client_runs_the_same_sessions,
    a_destructor_may_panic,
    a_dial_that_is_not_taken_brings_no_mail,
    a_few_threads_serve_many_connections,
    a_file_arrives_exactly,
    a_file_that_shrinks_ends_the_connection,
    a_flood_that_is_never_read_is_cut_off,
    a_full_mailbox_gives_the_message_back,
    a_full_server_lets_the_next_one_wait,
    a_full_server_refuses_the_next_one,
    a_full_thread_leaves_the_rest_to_others,
    a_group_gets_the_same_in_one_order,
    a_large_answer_may_come_by_mail,
    a_large_file_is_few_operations,
    a_last_answer_survives_unread_input,
    a_loop_may_spin,
    a_member_may_join_twice,
    a_message_may_be_taken_with_each_call,
    a_message_that_is_too_long_may_be_answered,
    a_panic_costs_one_connection,
    a_reset_by_the_peer_is_counted_once,
    a_reset_is_not_an_end,
    a_service_is_asked_once_what_it_needs,
    a_service_may_refuse,
    a_service_may_speak_first,
    a_shutdown_reaches_nobody_else,
    a_silent_connection_is_closed,
    a_slow_reader_holds_a_file_back,
    a_slow_reader_holds_the_producer_back,
    a_slow_reader_that_goes_on_is_not_cut_off,
    a_stop_does_not_wait_for_the_silent,
    a_stop_does_not_wait_for_who_only_pushes,
    a_stop_lets_answers_finish,
    a_stop_resets_what_is_stuck,
    a_stop_waits_for_what_has_begun,
    a_successor_takes_the_listener,
    a_trickling_peer_is_cut_off,
    #[cfg(unix)] a_unix_socket_is_as_good,
    a_wait_brings_a_bounded_batch,
    accepts_may_be_posted_singly,
    an_abort_reaches_the_peer_as_a_reset,
    an_address_is_there_for_who_asks,
    an_idle_connection_is_closed,
    #[cfg(target_os = "linux")]
    an_urgent_byte_hides_nothing,
    bulk_between_linked_connections_arrives_exactly,
    bytes_come_back_exactly,
    connections_may_be_linked,
    #[cfg(target_os = "linux")] descriptors_may_run_out,
    either_side_may_finish_first,
    every_model_of_this_system_is_here,
    every_thread_counts_for_itself,
    everybody_gets_a_turn_to_receive,
    leftover_input_is_shown_again,
    limits_change_while_the_server_runs,
    long_work_holds_nobody_up,
    mail_reaches_every_session,
    mail_to_oneself_starves_nobody,
    #[cfg(target_os = "linux")] multipath_tcp_is_like_tcp,
    opening_comes_first,
    outstanding_sends_are_bounded,
    pipelined_requests_are_answered_in_order,
    posted_accepts_stay_between_their_marks,
    requests_may_be_coalesced,
    sessions_are_notified_of_a_stop,
    several_operations_are_posted_at_once,
    sockets_may_be_used_again,
    the_counters_balance,
    the_local_address_is_there_for_who_asks,
    the_quiet_are_not_forgotten,
    the_silent_keep_nobody_out,
    thousands_of_connections_are_served,
    threads_are_started_as_connections_come,
    threads_share_the_connections,
    timers_fire_in_order_and_never_early,
    timers_may_have_keys,
    waiting_costs_no_cpu,
    what_is_there_is_taken_in_one_go,
    who_reads_nothing_is_heard,
    who_rests_keeps_nobody_out,
    work_may_end_by_a_timer,
}
