/* What STATUS and monitoring both say. */
#pragma once

#include <stdint.h>

struct server;
struct space;

/* Tokens that one tenant could still add to @x; tenants share what the pool can grow by. */
uint64_t status_tokens_free(const struct server *s, const struct space *x);
