/* The states of slower tiers in STATUS and CONTROL_TIER. An older daemon does not know all fields: "". */
#pragma once

#include <stdbool.h>
#include <string.h>

static inline bool tier_state_exists(const char *state)
{
    return state[0] != '\0' && strcmp(state, "none") != 0;
}

/* Whether it works, or there is no such tier. */
static inline bool tier_state_is_fine(const char *state)
{
    return !tier_state_exists(state) || strcmp(state, "ready") == 0;
}

/* For texts. */
static inline const char *tier_state_show(const char *state)
{
    return tier_state_exists(state) ? state : "none";
}
