/* The C ABI of libforge_runtime: loads a plan that forge-cc wrote and runs it.
 *
 * Every function that returns int32_t returns a status, FORGE_OK on success; forge_last_error() has the text of the last
 * failure on the calling thread. A handle may be used from several threads at once.
 */
#ifndef FORGE_RUNTIME_H
#define FORGE_RUNTIME_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Compare with forge_abi_version() before anything else. */
#define FORGE_ABI_VERSION 1

enum forge_status {
    FORGE_OK = 0,
    /* A null pointer, a negative rank, text that is not UTF-8, a misaligned block, too little room for results. */
    FORGE_ARGUMENT = 1,
    /* A file could not be read. */
    FORGE_IO = 2,
    /* The plan is malformed, of another version or for another target. */
    FORGE_PLAN = 3,
    /* A kernel module could not be loaded. */
    FORGE_MODULE = 4,
    /* A weight is missing or has another size. */
    FORGE_WEIGHT = 5,
    /* Input shapes that the plan does not accept. */
    FORGE_SHAPE = 6,
    /* Not enough memory. */
    FORGE_MEMORY = 7,
    /* A step broke the rules that guarded execution checks. */
    FORGE_GUARD = 8,
    /* A bug in the runtime. */
    FORGE_INTERNAL = 9
};

/* An open plan. */
typedef struct forge_handle forge_handle;

int32_t forge_abi_version(void);

/* Loads the plan `plan_file` of folder `dir` (with its weights.safetensors and kernel modules) and stores a handle in
 * *handle, or NULL on failure. `threads`: threads of a call, the calling one included; 0 means one for each core. */
int32_t forge_open(const char *dir, const char *plan_file, int32_t threads, forge_handle **handle);

/* Writes the shapes of all outputs, one after another, to out_dims, which has room for `capacity` dimensions.
 * `ranks`: the rank of each of the n_inputs inputs; `dims`: their dimensions, one input after another. */
int32_t forge_output_shapes(const forge_handle *handle, int32_t n_inputs, const int32_t *ranks, const int64_t *dims,
                            int64_t *out_dims, int64_t capacity);

/* Runs the plan. `inputs`, `outputs`: the address of each, dense, row-major, aligned to its dtype; NULL is accepted for an
 * empty one. Outputs must not overlap any other block. `ranks` and `dims` as above. */
int32_t forge_run(const forge_handle *handle, const void *const *inputs, const int32_t *ranks, const int64_t *dims,
                  void *const *outputs);

/* The text of the last failure on this thread, empty if there was none; valid until the next failure on it. */
const char *forge_last_error(void);

/* Closes a handle; NULL is accepted. No call on the handle may be under way or follow. */
int32_t forge_close(forge_handle *handle);

#ifdef __cplusplus
}
#endif

#endif
