/*
 * The checks of `kvcobra doctor`, in groups: the machine, the sockets, the daemon. Each adds findings; none
 * changes anything. Only cmd_doctor.c uses it.
 */
#pragma once

#include <stddef.h>

#include "client/kvcobra-call.h"

enum doctor_result { DOCTOR_OK, DOCTOR_NOTE, DOCTOR_WRONG };

struct doctor_finding {
    enum doctor_result result;
    const char *subject; /* "memory"; static */
    char text[512];      /* what is so, and for NOTE and WRONG what to do */
};

enum { DOCTOR_FINDINGS_MAX = 64 };

#define DOCTOR_CONFIG "configuration" /* a subject */

struct doctor {
    struct doctor_finding findings[DOCTOR_FINDINGS_MAX];
    size_t n;
};

__attribute__((format(printf, 4, 5))) void doctor_add(struct doctor *d, enum doctor_result result,
                                                      const char *subject, const char *fmt, ...);

/* What systemctl says of kvcobrad.service. */
void doctor_add_unit(struct doctor *d, const char *load_state, const char *active_state);

/* What CONTROL_TIER says of a tier. One that is not ready costs misses only, so clients do not notice. */
void doctor_add_tier(struct doctor *d, const char *subject, const char *state, const char *message);

/* Version, kernels for this processor, memory, clock, systemd. */
void doctor_check_machine(struct doctor *d);

/* The sockets that @client_path and @operator_path, or the environment, name. @ret_operator: a connection to
 * the operator socket; NULL: there is none. */
void doctor_check_sockets(struct doctor *d, const char *client_path, const char *operator_path,
                          uint32_t timeout_ms, kvc_client **ret_operator);

/* Version, tiers, memory, descriptors, tenants and tables of the daemon. */
void doctor_check_daemon(struct doctor *d, kvc_client *control);
