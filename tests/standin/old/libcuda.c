/* A driver that is too old to share memory by descriptors: it has cuInit(), and none of the other calls
 * that we need. */
__attribute__((visibility("default"))) int cuInit(unsigned flags);

int cuInit(unsigned flags)
{
    return flags == 0 ? 0 : 1;
}
