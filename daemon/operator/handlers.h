/* The handlers of this room, named after their files; see daemon/requests/handlers.h. */
#pragma once

struct request;

int drain_handle(struct request *rq);
int operator_handle_evict(struct request *rq);
int quota_handle_set(struct request *rq);
int status_handle(struct request *rq);
