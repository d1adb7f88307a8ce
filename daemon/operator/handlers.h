/* The handlers of this room, named after their files; see daemon/requests/handlers.h. */
#pragma once

struct request;

int drain_handle(struct request *rq);
int flush_handle(struct request *rq);
int lookup_handle(struct request *rq);
int pin_handle(struct request *rq);
int watch_handle_list_sessions(struct request *rq);
int watch_handle_disconnect(struct request *rq);
int watch_handle_list_events(struct request *rq);
int operator_handle_evict(struct request *rq);
int quota_handle_set(struct request *rq);
int tier_handle_control(struct request *rq);
int status_handle(struct request *rq);
