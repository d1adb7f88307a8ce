/*
 * The handlers of this room, named after their files; dispatch.c has the table. Each one reads the message,
 * changes the daemon's state and fills the reply's body. Return: 0; negative errno with a sentence in
 * rq->error; REQUEST_PENDING: a job will answer.
 */
#pragma once

struct request;

int handshake_handle_hello(struct request *rq);
int handshake_handle_confirm(struct request *rq);
int handshake_handle_bye(struct request *rq);
int models_handle_open(struct request *rq);
int models_handle_get_extent(struct request *rq);
int models_handle_get_filter(struct request *rq);
int tables_requests_handle_list(struct request *rq);
int tables_requests_handle_fetch(struct request *rq);
int tables_requests_handle_ref(struct request *rq);
int tables_requests_handle_unref(struct request *rq);
int tables_requests_handle_activate(struct request *rq);
int tables_requests_handle_rollback(struct request *rq);
int tables_requests_handle_retire(struct request *rq);
int aliases_requests_handle_alias(struct request *rq);
int aliases_requests_handle_unalias(struct request *rq);
int aliases_requests_handle_list(struct request *rq);
int trials_requests_handle_shadow(struct request *rq);
int trials_requests_handle_canary(struct request *rq);
int trials_requests_handle_get_fit(struct request *rq);
int stage_handle(struct request *rq);
int pages_write_handle_reserve(struct request *rq);
int pages_write_handle_abort(struct request *rq);
int commit_handle(struct request *rq);
int pages_read_handle_lease(struct request *rq);
int pages_read_handle_release(struct request *rq);
int pages_read_handle_keep_leases(struct request *rq);
int raw_append_handle(struct request *rq);
int raw_read_handle(struct request *rq);
int report_handle(struct request *rq);
int moments_handle_fetch(struct request *rq);
