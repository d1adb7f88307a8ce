/* What the server has in the file system. See server_parts.h. */
#include "daemon/server_parts.h"

#include "daemon/config/config.h"
#include "daemon/loop/listen.h"
#include "daemon/loop/names.h"
#include "daemon/offload/offload.h"
#include "daemon/requests/state.h"
#include "daemon/tables/state_folder.h"

int server_names_open(struct server *s, struct errmsg *e)
{
    int r = s->config->state_dir ? state_folder_open(s->config->state_dir, &s->frame->state_folder, e) : 0;

    if (r == 0 && s->config->state_dir)
        s->config->state_folder = &s->frame->state_folder;
    return r;
}

void server_names_close(struct server *s)
{
    s->config->state_folder = NULL;
    state_folder_close(&s->frame->state_folder);
}

int server_names_watch(struct server *s, struct errmsg *e)
{
    static const char remedy[] =
        "changes of operators are refused, since they cannot be stored. Restart kvcobrad";
    const struct listen_socket *cluster = offload_cluster_socket(s->offload);
    const struct state_folder *f = &s->frame->state_folder;
    int r = names_new(s->ev, s->work, &s->names, e);

    if (r < 0)
        return r;

    r = listen_watch(&s->frame->client_socket, s->names, "client socket", s->client_path, e);
    if (r < 0)
        return r;

    r = listen_watch(&s->frame->operator_socket, s->names, "operator socket", s->operator_path, e);
    if (r < 0)
        return r;
    if (s->frame->metrics_socket.path)
        r = listen_watch(&s->frame->metrics_socket, s->names, "metrics socket", s->frame->metrics_socket.path,
                         e);
    if (r < 0)
        return r;
    if (cluster)
        r = listen_watch(cluster, s->names, "cluster socket", cluster->path, e);
    if (r < 0)
        return r;
    if (f->path)
        r = names_add(s->names, "state folder", f->path, f->fd, remedy, e);
    return r;
}
