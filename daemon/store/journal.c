/* See journal.h. */
#include "daemon/store/journal.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/memory_file.h"
#include "daemon/config/account_name.h"
#include "daemon/store/slot.h"

enum { HEAD_BYTES = 4096 };

_Static_assert(sizeof(struct journal_head) <= HEAD_BYTES, "journal head");
#define COPIES_OFF ((size_t) HEAD_BYTES)
#define SESSIONS_OFF (COPIES_OFF + 2 * sizeof(struct journal_copy))
#define NAMES_OFF (SESSIONS_OFF + JOURNAL_SESSIONS_MAX * sizeof(struct session_record))
#define HOLDS_OFF (NAMES_OFF + JOURNAL_NAMES_MAX * sizeof(struct journal_name))
#define JOURNAL_BYTES (HOLDS_OFF + JOURNAL_HOLDS_MAX * sizeof(struct hold_cell))

/*
 * One thread writes, and a process that is killed leaves the memory as its last store left it. So it is
 * enough that the compiler keeps the order of the stores before and after this line.
 */
static void journal_keep_order(void)
{
    atomic_signal_fence(memory_order_seq_cst);
}

static uint32_t journal_place_crc(const struct journal_place *p)
{
    return crc32c(p, offsetof(struct journal_place, crc32c));
}

static uint32_t journal_name_crc(const struct journal_name *n)
{
    return crc32c(n->name, sizeof(n->name));
}

static uint32_t journal_copy_crc(const struct journal_copy *c)
{
    uint32_t parts[2];

    parts[0] = crc32c(c, offsetof(struct journal_copy, crc32c));
    parts[1] = crc32c(c->extents, c->n_extents * sizeof(c->extents[0]));
    return crc32c(parts, sizeof(parts));
}

/* ---- creation ---- */

static int journal_map_object(struct journal *j, int fd, struct errmsg *e)
{
    void *data = mmap(NULL, JOURNAL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (data == MAP_FAILED || madvise(data, JOURNAL_BYTES, MADV_DONTDUMP) < 0)
        return fail(e, -errno, "cannot map the journal: %s", strerror(errno));

    *j = (struct journal){
        .data = data,
        .head = data,
        .unused_hold = CELL_NONE,
        .copies = (struct journal_copy *) ((uint8_t *) data + COPIES_OFF),
        .sessions = (struct session_record *) ((uint8_t *) data + SESSIONS_OFF),
        .names = (struct journal_name *) ((uint8_t *) data + NAMES_OFF),
        .holds = (struct hold_cell *) ((uint8_t *) data + HOLDS_OFF),
    };
    j->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (j->fd >= 0)
        return 0;

    (void) munmap(data, JOURNAL_BYTES);
    *j = (struct journal){.fd = -1};
    return fail(e, -errno, "cannot keep the journal open: %s", strerror(errno));
}

uint64_t journal_object_bytes(void)
{
    return JOURNAL_BYTES;
}

int journal_new(struct journal *j, struct errmsg *e)
{
    _cleanup_(closep) int fd = memory_file_open("kvcobra-journal");
    int r;

    if (fd < 0)
        return fail(e, fd, "cannot create the journal: %s", strerror(-fd));
    if (fchmod(fd, 0600) < 0 || ftruncate(fd, JOURNAL_BYTES) < 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        return fail(e, -errno, "cannot create the journal: %s", strerror(errno));

    r = journal_map_object(j, fd, e);
    if (r < 0)
        return r;

    *j->head = (struct journal_head){.magic = JOURNAL_MAGIC, .version = JOURNAL_VERSION, .n_starts = 1};
    journal_write(j, NULL, 0, 1);
    return 0;
}

void journal_deinit(struct journal *j)
{
    if (j->data) {
        (void) munmap(j->data, JOURNAL_BYTES);
        (void) close(j->fd);
    }
    *j = (struct journal){.fd = -1};
}

int journal_freeze(struct journal *j)
{
    const int flags = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE;

    if (mmap(j->data, JOURNAL_BYTES, PROT_READ | PROT_WRITE, flags, j->fd, 0) == MAP_FAILED)
        return -errno;
    return madvise(j->data, JOURNAL_BYTES, MADV_DONTDUMP) < 0 ? -errno : 0;
}

/* ---- adoption ---- */

static int journal_check_object(int fd, struct errmsg *e)
{
    const int need = F_SEAL_SHRINK | F_SEAL_GROW;
    int seals = fcntl(fd, F_GET_SEALS);
    struct stat st;

    if (fstat(fd, &st) < 0)
        return fail(e, -errno, "cannot read the size of the stored journal: %s", strerror(errno));
    if (seals < 0 || (seals & need) != need || (uint64_t) st.st_size != JOURNAL_BYTES)
        return fail(e, -EBADMSG, "the stored journal is not a memory object of this version");
    return 0;
}

/* Adds the place's extents to @n_extents. */
static bool journal_place_is_valid(const struct journal_place *p, uint64_t *n_extents)
{
    if (p->pool_bytes == 0)
        return true;
    if (p->uuid[JOURNAL_UUID_BYTES - 1] != '\0' || p->extent_bytes == 0 || p->unit_bytes == 0 ||
        p->extent_bytes % p->unit_bytes != 0 || p->pool_bytes % p->extent_bytes != 0)
        return false;

    *n_extents += p->pool_bytes / p->extent_bytes;
    return *n_extents <= JOURNAL_EXTENTS_MAX;
}

static int journal_check_head(const struct journal_head *h, struct errmsg *e)
{
    uint64_t n_extents = 0;

    if (h->magic != JOURNAL_MAGIC || h->version < JOURNAL_VERSION_MIN || h->version > JOURNAL_VERSION)
        return fail(e, -EBADMSG,
                    "the stored journal is of another version (%" PRIu32 ", this kvcobrad reads %d to %d)",
                    h->version, JOURNAL_VERSION_MIN, JOURNAL_VERSION);

    for (uint32_t i = 0; i < JOURNAL_PLACES_MAX; i++)
        if (h->places[i].pool_bytes != 0 && h->places[i].crc32c != journal_place_crc(&h->places[i]))
            return fail(e, -EBADMSG, "the head of the stored journal is damaged");
    if (h->n_sessions > JOURNAL_SESSIONS_MAX || h->n_holds > JOURNAL_HOLDS_MAX ||
        h->generation > SLOT_GENERATION_MAX || h->lease_serial > JOURNAL_SERIAL_MAX ||
        h->session_serial > JOURNAL_SERIAL_MAX)
        return fail(e, -EBADMSG, "the counters of the stored journal are damaged");

    for (uint32_t i = 0; i < JOURNAL_PLACES_MAX; i++)
        if (!journal_place_is_valid(&h->places[i], &n_extents))
            return fail(e, -EBADMSG, "the counters of the stored journal are damaged");
    return 0;
}

static bool journal_copy_is_valid(const struct journal_copy *c)
{
    return c->sequence > 0 && c->n_extents <= JOURNAL_EXTENTS_MAX && c->crc32c == journal_copy_crc(c);
}

/* Chains the unused cells again. */
static void journal_collect_unused(struct journal *j)
{
    j->unused_hold = CELL_NONE;
    j->n_holds = 0;
    for (uint32_t i = (uint32_t) j->head->n_holds; i-- > 0;) {
        if (j->holds[i].slot != SLOT_NONE) {
            j->n_holds++;
            continue;
        }

        j->holds[i].lease = j->unused_hold;
        j->unused_hold = i;
    }
}

static bool journal_name_is_valid(const struct journal *j, uint32_t i)
{
    const struct journal_name *n = &j->names[i];

    if (n->name[ACCOUNT_NAME_BYTES - 1] != '\0' || n->crc32c != journal_name_crc(n) ||
        account_name_check(n->name, NULL) < 0)
        return false;

    for (uint32_t k = 0; k < i; k++) /* each name once */
        if (j->names[k].in_use && strcmp(j->names[k].name, n->name) == 0)
            return false;
    return true;
}

/* Removes entries that are damaged, with all extents and sessions that name them: restore.c looks them up. */
static void journal_adopt_names(struct journal *j)
{
    if (j->head->version == 2)
        memset(j->names, 0, JOURNAL_NAMES_MAX * sizeof(j->names[0]));

    for (uint32_t i = 0; i < JOURNAL_NAMES_MAX; i++) {
        if (!j->names[i].in_use || journal_name_is_valid(j, i))
            continue;

        j->names[i].in_use = 0;
        j->n_damaged_names++;
    }

    j->adopted_version = j->head->version;
    journal_keep_order();
    j->head->version = JOURNAL_VERSION;
}

int journal_adopt(struct journal *j, int fd, struct errmsg *e)
{
    int r = journal_check_object(fd, e);

    if (r == 0)
        r = journal_map_object(j, fd, e);
    if (r < 0)
        return r;

    r = journal_check_head(j->head, e);
    if (r == 0 && !journal_copy_is_valid(&j->copies[0]) && !journal_copy_is_valid(&j->copies[1]))
        r = fail(e, -EBADMSG, "both copies of the stored journal are damaged");
    if (r < 0) {
        journal_deinit(j);
        return r;
    }

    j->sequence = journal_read(j)->sequence;
    journal_adopt_names(j);
    j->head->n_starts++;
    journal_collect_unused(j);
    return 0;
}

/* ---- devices ---- */

uint32_t journal_place_find(const struct journal *j, const char *uuid)
{
    for (uint32_t i = 0; i < JOURNAL_PLACES_MAX; i++)
        if (j->head->places[i].pool_bytes != 0 && strcmp(j->head->places[i].uuid, uuid) == 0)
            return i;
    return PLACE_NONE;
}

uint32_t journal_place_add(struct journal *j, const char *uuid, uint64_t pool_bytes, uint64_t extent_bytes,
                           uint64_t unit_bytes)
{
    assert(pool_bytes > 0 && strlen(uuid) < JOURNAL_UUID_BYTES && journal_place_find(j, uuid) == PLACE_NONE);
    for (uint32_t i = 0; i < JOURNAL_PLACES_MAX; i++) {
        struct journal_place *p = &j->head->places[i];

        if (p->pool_bytes != 0)
            continue;

        *p = (struct journal_place){.extent_bytes = extent_bytes, .unit_bytes = unit_bytes};
        memcpy(p->uuid, uuid, strlen(uuid) + 1);
        randombytes_buf(p->pool_id, sizeof(p->pool_id));
        p->crc32c = journal_place_crc(p);
        journal_keep_order();
        p->pool_bytes = pool_bytes;
        return i;
    }

    return PLACE_NONE;
}

void journal_place_remove(struct journal *j, uint32_t place)
{
    j->head->places[place].pool_bytes = 0;
    journal_keep_order();
}

/* ---- names of accounts ---- */

uint32_t journal_name_find(const struct journal *j, const char *name)
{
    for (uint32_t i = 0; i < JOURNAL_NAMES_MAX; i++)
        if (j->names[i].in_use && strcmp(j->names[i].name, name) == 0)
            return i + 1;
    return 0;
}

uint32_t journal_name_add(struct journal *j, const char *name)
{
    assert(strlen(name) < ACCOUNT_NAME_BYTES && journal_name_find(j, name) == 0);
    for (uint32_t i = 0; i < JOURNAL_NAMES_MAX; i++) {
        struct journal_name *n = &j->names[i];

        if (n->in_use)
            continue;

        *n = (struct journal_name){0};
        memcpy(n->name, name, strlen(name));
        n->crc32c = journal_name_crc(n);
        journal_keep_order();
        n->in_use = 1;
        return i + 1;
    }

    return 0;
}

void journal_name_remove(struct journal *j, uint32_t number)
{
    assert(journal_name(j, number));
    j->names[number - 1].in_use = 0;
    journal_keep_order();
}

const char *journal_name(const struct journal *j, uint32_t number)
{
    if (number == 0 || number > JOURNAL_NAMES_MAX || !j->names[number - 1].in_use)
        return NULL;
    return j->names[number - 1].name;
}

/* ---- extents ---- */

const struct journal_copy *journal_read(const struct journal *j)
{
    const struct journal_copy *a = &j->copies[0], *b = &j->copies[1];
    bool a_valid = journal_copy_is_valid(a), b_valid = journal_copy_is_valid(b);

    if (a_valid && b_valid)
        return a->sequence > b->sequence ? a : b;
    if (a_valid)
        return a;
    return b_valid ? b : NULL;
}

void journal_write(struct journal *j, const uint64_t *extents, uint32_t n_extents, uint64_t next_extent)
{
    struct journal_copy *c = &j->copies[(j->sequence + 1) & 1]; /* sequences alternate between the copies */

    assert(n_extents <= JOURNAL_EXTENTS_MAX);
    c->crc32c = ~c->crc32c;
    journal_keep_order();
    c->sequence = j->sequence + 1;
    c->next_extent = next_extent;
    c->n_extents = n_extents;
    if (n_extents > 0)
        memcpy(c->extents, extents, n_extents * sizeof(extents[0]));
    journal_keep_order();
    c->crc32c = journal_copy_crc(c);
    j->sequence++;
}

/* ---- holds ---- */

uint32_t journal_hold_add(struct journal *j, uint32_t session, uint32_t item, uint64_t lease, uint32_t slot)
{
    uint32_t number = j->unused_hold;
    struct hold_cell *c;

    assert(item < 1u << JOURNAL_ITEM_BITS && session < JOURNAL_SESSIONS_MAX && slot != SLOT_NONE);
    if (number != CELL_NONE) {
        j->unused_hold = (uint32_t) j->holds[number].lease;
    } else {
        assert(j->head->n_holds < JOURNAL_HOLDS_MAX);
        number = (uint32_t) j->head->n_holds;
        /* a zeroed cell would name slot 0, so it is marked as unused before n_holds counts it */
        j->holds[number].slot = SLOT_NONE;
        journal_keep_order();
        j->head->n_holds++;
    }

    c = &j->holds[number];
    c->lease = lease;
    c->session_item = session << JOURNAL_ITEM_BITS | item;
    journal_keep_order();
    c->slot = slot;
    j->n_holds++;
    return number;
}

void journal_hold_remove(struct journal *j, uint32_t cell)
{
    struct hold_cell *c = &j->holds[cell];

    assert(cell < j->head->n_holds && c->slot != SLOT_NONE);
    c->slot = SLOT_NONE;
    journal_keep_order();
    c->lease = j->unused_hold;
    j->unused_hold = cell;
    j->n_holds--;
}

/* ---- sessions ---- */

void journal_session_add(struct journal *j, uint32_t number, const struct session_record *r)
{
    struct session_record *at = &j->sessions[number];

    assert(number < JOURNAL_SESSIONS_MAX);
    *at = *r;
    at->serial = 0;
    if (number >= j->head->n_sessions)
        j->head->n_sessions = number + 1;
    journal_keep_order();
    at->serial = ++j->head->session_serial;
}

void journal_session_remove(struct journal *j, uint32_t number)
{
    j->sessions[number].serial = 0;
    journal_keep_order();
}
