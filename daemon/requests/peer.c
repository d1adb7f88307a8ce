/* The account that the process at the other end acts for, and whether it may operate. See conn.h. */
#include "daemon/requests/conn.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "daemon/requests/state.h"
#include "daemon/store/device.h"

/* The supplementary groups that the peer had when it connected. *@ret is the caller's. */
static int peer_read_groups(int fd, gid_t **ret, size_t *ret_n)
{
    _cleanup_(freep) gid_t *groups = NULL;
    socklen_t bytes = 0;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, NULL, &bytes) == 0)
        return 0; /* there are none */
    if (errno != ERANGE)
        return -errno;

    groups = malloc(bytes);
    if (!groups)
        return -ENOMEM;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &bytes) < 0)
        return -errno;

    *ret_n = bytes / sizeof(*groups);
    *ret = take_ptr(groups);
    return 0;
}

static bool peer_has_group(const struct tenant_peer *p, gid_t gid)
{
    bool found = p->gid == gid;

    for (size_t i = 0; i < p->n_groups && !found; i++)
        found = p->groups[i] == gid;
    return found;
}

/* An adopted socket may have another mode than one that kvcobrad makes, so the mode is not relied on. */
static int peer_check_operator(const struct config *c, const struct tenant_peer *p, struct errmsg *e)
{
    if (p->uid == 0 || p->uid == getuid() ||
        (c->operator_gid != (gid_t) -1 && peer_has_group(p, c->operator_gid)))
        return 0;
    if (c->operator_gid == (gid_t) -1)
        return fail(e, -EPERM,
                    "uid %lu is neither root nor the user of kvcobrad, and no operator-group is configured",
                    (unsigned long) p->uid);
    return fail(e, -EPERM, "uid %lu is not in the group \"%.60s\", whose members may use the operator socket",
                (unsigned long) p->uid, c->operator_group);
}

int peer_identify(struct server *s, int fd, bool is_operator, struct ucred *ret, struct account **ret_account,
                  struct errmsg *e)
{
    _cleanup_(freep) gid_t *groups = NULL;
    socklen_t bytes = sizeof(*ret);
    struct tenant_peer peer = {0};
    int r = 0;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, ret, &bytes) < 0)
        return fail(e, -errno, "cannot read the credentials of a client: %s", strerror(errno));

    if (s->config->tenants.n_groups > 0 || (is_operator && s->config->operator_group))
        r = peer_read_groups(fd, &groups, &peer.n_groups);
    if (r < 0)
        return fail(e, r, "cannot read the groups of a client: %s", strerror(-r));

    peer.uid = ret->uid;
    peer.gid = ret->gid;
    peer.groups = groups;
    if (is_operator)
        r = peer_check_operator(s->config, &peer, e);
    return r == 0 ? devices_account(s->devices, &peer, ret_account, e) : r;
}
