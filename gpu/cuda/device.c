/* Finds a GPU by UUID, because ordinals differ between processes; see driver.h. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/errmsg.h"
#include "gpu/cuda/driver.h"

void cuda_uuid_format(const struct cu_uuid *uuid, char ret[static CUDA_UUID_CHARS])
{
    const uint8_t *b = uuid->bytes;

    (void) snprintf(ret, CUDA_UUID_CHARS,
                    "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1],
                    b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

static int device_hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';

    c = (char) tolower((unsigned char) c);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static int device_parse_uuid(const char *text, struct cu_uuid *ret, struct errmsg *e)
{
    const char *at = text;
    struct cu_uuid uuid = {0};
    size_t n = 0;

    if (strncmp(at, "GPU-", 4) == 0 || strncmp(at, "MIG-", 4) == 0)
        at += 4;
    for (; *at; at++) {
        int digit = device_hex_digit(*at);

        if (*at == '-')
            continue;
        if (digit < 0 || n == 2 * sizeof(uuid.bytes))
            return fail(e, -EINVAL, "\"%s\" is not the UUID of a GPU ('nvidia-smi -L' lists them)", text);

        uuid.bytes[n / 2] |= (uint8_t) (n % 2 == 0 ? digit << 4 : digit);
        n++;
    }

    if (n != 2 * sizeof(uuid.bytes))
        return fail(e, -EINVAL, "\"%s\" is not the UUID of a GPU ('nvidia-smi -L' lists them)", text);

    *ret = uuid;
    return 0;
}

/* Reads the properties of a device that driver.h lists. Refuses a device that cannot share memory as file
 * descriptors, or that shares its memory with the host. */
static int device_read_info(const struct cuda_driver *d, cu_device device, struct cuda_device_info *ret,
                            struct errmsg *e)
{
    struct cuda_device_info info = {.ordinal = device};
    struct cu_allocation prop = {.type = CU_ALLOCATION_PINNED,
                                 .handle_types = CU_HANDLE_POSIX_FD,
                                 .location = {CU_LOCATION_DEVICE, device}};
    int vmm = 0, posix_fd = 0, major = 0, minor = 0;
    cu_result r = d->device_uuid(&info.uuid, device);

    if (r == CU_SUCCESS)
        r = d->device_name(info.name, sizeof(info.name), device);
    if (r == CU_SUCCESS)
        r = d->device_bytes(&info.bytes, device);
    if (r == CU_SUCCESS)
        r = d->device_attribute(&major, CU_ATTRIBUTE_COMPUTE_MAJOR, device);
    if (r == CU_SUCCESS)
        r = d->device_attribute(&minor, CU_ATTRIBUTE_COMPUTE_MINOR, device);
    if (r == CU_SUCCESS)
        r = d->device_attribute(&info.multiprocessors, CU_ATTRIBUTE_MULTIPROCESSORS, device);
    if (r == CU_SUCCESS)
        r = d->device_attribute(&vmm, CU_ATTRIBUTE_VMM, device);
    if (r == CU_SUCCESS)
        r = d->device_attribute(&posix_fd, CU_ATTRIBUTE_POSIX_FD, device);
    if (r != CU_SUCCESS)
        return cuda_fail(d, r, e, "cannot query the attributes of the GPU");

    info.name[sizeof(info.name) - 1] = '\0';
    if (!vmm || !posix_fd)
        return fail(e, -EOPNOTSUPP, "%s cannot share memory between processes by file descriptors",
                    info.name);

    r = d->granularity(&info.granularity, &prop, CU_GRANULARITY_MINIMUM);
    if (r != CU_SUCCESS)
        return cuda_fail(d, r, e, "cannot query the memory granularity of the GPU");
    if (info.granularity == 0 || (info.granularity & (info.granularity - 1)) != 0)
        return fail(e, -EOPNOTSUPP, "%s maps memory in units of %zu bytes, which is not a power of two",
                    info.name, info.granularity);

    info.compute = 10 * major + minor;
    *ret = info;
    return 0;
}

static void device_list_uuids(const struct cuda_driver *d, int n, char *ret, size_t bytes)
{
    size_t used = 0;

    ret[0] = '\0';
    for (int i = 0; i < n; i++) {
        char text[CUDA_UUID_CHARS];
        struct cu_uuid uuid;
        cu_device device;
        int written;

        if (d->device_get(&device, i) != CU_SUCCESS || d->device_uuid(&uuid, device) != CU_SUCCESS)
            continue;

        cuda_uuid_format(&uuid, text);
        written = snprintf(ret + used, bytes - used, "%s%s", used > 0 ? ", " : "", text);
        if (written < 0 || (size_t) written >= bytes - used)
            return;

        used += (size_t) written;
    }
}

int cuda_device_find(const struct cuda_driver *d, const char *uuid, struct cuda_device_info *ret_info,
                     struct errmsg *e)
{
    struct cu_uuid wanted = {0}, have;
    char list[256];
    cu_device device;
    cu_result r;
    int n, err;

    err = uuid ? device_parse_uuid(uuid, &wanted, e) : 0;
    if (err < 0)
        return err;

    r = d->device_count(&n);
    for (int i = 0; r == CU_SUCCESS && i < n; i++) {
        r = d->device_get(&device, i);
        if (r == CU_SUCCESS)
            r = d->device_uuid(&have, device);
        if (r == CU_SUCCESS && (!uuid || memcmp(&have, &wanted, sizeof(have)) == 0))
            return device_read_info(d, device, ret_info, e);
    }

    if (r != CU_SUCCESS)
        return cuda_fail(d, r, e, "cannot list GPUs");

    device_list_uuids(d, n, list, sizeof(list));
    return fail(e, -ENODEV, "the NVIDIA driver shows this process no GPU %s, only %s", uuid ? uuid : "",
                list[0] ? list : "none");
}
