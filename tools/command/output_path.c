/* See output_path.h. */
#include "tools/command/output_path.h"

#include <errno.h>
#include <sys/stat.h>

#include "base/atomic_file.h"
#include "base/errmsg.h"

int output_check(const char *output, const char *const *inputs, size_t n_inputs, struct errmsg *e)
{
    struct stat there, in;
    int r = atomic_file_check(output, e);

    if (r < 0 || stat(output, &there) < 0) /* what is not there yet is no input */
        return r;

    for (size_t i = 0; i < n_inputs; i++)
        if (inputs[i] && stat(inputs[i], &in) == 0 && in.st_dev == there.st_dev && in.st_ino == there.st_ino)
            return fail(e, -EINVAL, "%s is read: give what is written another name", output);
    return 0;
}
