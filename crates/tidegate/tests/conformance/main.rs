//! The conformance suite: one suite, every model.
//!
//! Each file beside this one is a case, and reads as a sentence about what every model promises. It runs on each
//! of them under a deadline: `cargo test -p tidegate --test conformance half_close`, or `... ::epoll`.
//! The services are written against the public interface only; their peers are plain sockets of
//! the standard library. No case sleeps in order to wait: it waits for a condition ([`kit::until`]).
#![forbid(unsafe_code)]

#[macro_use]
pub(crate) mod kit;

mod a_client_runs_the_same_sessions;
mod a_few_threads_serve_many_connections;
mod a_file_arrives_exactly;
mod a_file_that_shrinks_ends_the_connection;
mod a_flood_that_is_never_read_is_cut_off;
mod a_full_server_lets_the_next_one_wait;
mod a_full_server_refuses_the_next_one;
mod a_full_thread_leaves_the_rest_to_others;
mod a_group_gets_the_same_in_one_order;
mod a_large_answer_may_come_by_mail;
mod a_last_answer_survives_unread_input;
mod a_loop_may_spin;
mod a_panic_costs_one_connection;
mod a_reset_by_the_peer_is_counted_once;
mod a_service_may_refuse;
mod a_service_may_speak_first;
mod a_silent_connection_is_closed;
mod a_slow_reader_holds_a_file_back;
mod a_slow_reader_holds_the_producer_back;
mod a_stop_does_not_wait_for_the_silent;
mod a_stop_lets_answers_finish;
mod a_stop_resets_what_is_stuck;
mod a_stop_waits_for_what_has_begun;
mod a_successor_takes_the_listener;
mod a_trickling_peer_is_cut_off;
mod a_unix_socket_is_as_good;
mod accepts_may_be_posted_singly;
mod an_abort_reaches_the_peer_as_a_reset;
mod an_idle_connection_is_closed;
mod bytes_come_back_exactly;
mod descriptors_may_run_out;
mod either_side_may_finish_first;
mod every_model_of_this_system_is_here;
mod everybody_gets_a_turn_in_a_window;
mod leftover_input_is_shown_again;
mod limits_change_while_the_server_runs;
mod long_work_holds_nobody_up;
mod mail_reaches_every_session;
mod multipath_tcp_is_like_tcp;
mod outstanding_sends_are_bounded;
mod pipelined_requests_are_answered_in_order;
mod sockets_may_be_used_again;
mod the_counters_balance;
mod the_quiet_are_not_forgotten;
mod thousands_of_connections_are_served;
mod timers_fire_in_order_and_never_early;
mod waiting_costs_no_cpu;
