// A plugin library for tests: the operator CopyRows_Test hands its input through. With TRTOPS_TEST_FAULTS set, the first
// element may be one of FAULTS: then what a broken kernel or library does is done for real. Built with no header of TensorRT's,
// for hosts that have its libraries only: the classes below have the layout of the plugin interface of versions 8.x,
// in which a plugin with dynamic shapes says 3 in the upper byte of its version.
//
// c++ -shared -fPIC -std=c++14 copy_plugin.cpp -l:libnvinfer.so.8 -ldl

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <dlfcn.h>
#include <unistd.h>

namespace {

constexpr int32_t VERSION = 8600;

// What the first element asks for.
enum FAULTS { ILLEGAL_ADDRESS = -9001, SEGFAULT = -9002, HANG = -9003, EXIT = -9004 };

// Kernels: one writes where nothing is, one never ends.
char const KERNELS[] =
    ".version 6.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry stray() { .reg .u64 %a; .reg .u32 %v; mov.u64 %a, 8; mov.u32 %v, 1; st.global.u32 [%a], %v; ret; }\n"
    ".visible .entry endless() { AGAIN: bra.uni AGAIN; }\n";

template <typename Function>
Function driver(char const* name) {
    static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
    return library ? reinterpret_cast<Function>(dlsym(library, name)) : nullptr;
}

void launch(char const* kernel, void* stream) {
    void *module = nullptr, *function = nullptr;
    driver<int (*)(void**, void const*)>("cuModuleLoadData")(&module, KERNELS);
    driver<int (*)(void**, void*, char const*)>("cuModuleGetFunction")(&function, module, kernel);
    using Launch = int (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
    driver<Launch>("cuLaunchKernel")(function, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr);
}

// Do what the first element asks for.
void fault(void const* source, void* stream) {
    float first = 0;
    driver<int (*)(void*, uint64_t, size_t, void*)>("cuMemcpyDtoHAsync_v2")(
        &first, reinterpret_cast<uint64_t>(source), sizeof(first), stream);
    driver<int (*)(void*)>("cuStreamSynchronize")(stream);
    switch (static_cast<int>(first)) {
        case ILLEGAL_ADDRESS: launch("stray", stream); break;
        case HANG: launch("endless", stream); break;
        case SEGFAULT: *reinterpret_cast<int volatile*>(8) = 1; break;
        case EXIT: _exit(3);
    }
}

struct Dims {
    int32_t count;
    int32_t sizes[8];
};
struct Sizes {  // a dimension is an expression while the engine is built
    int32_t count;
    void const* sizes[8];
};
struct Tensor {
    Dims dims;
    int32_t type;
    int32_t format;
    float scale;
};
struct TensorRange {
    Tensor tensor;
    Dims least;
    Dims most;
};
struct Fields {
    int32_t count;
    void const* fields;
};

class Plugin {
public:
    virtual int32_t version() const noexcept { return (3 << 24) | VERSION; }
    virtual char const* type() const noexcept { return "CopyRows_Test"; }
    virtual char const* typeVersion() const noexcept { return "1"; }
    virtual int32_t outputs() const noexcept { return 1; }
    virtual Dims fixedDims(int32_t, Dims const*, int32_t) noexcept { return Dims{-1, {}}; }
    virtual bool takesFormat(int32_t, int32_t) const noexcept { return false; }
    virtual void configureFormat(Dims const*, int32_t, Dims const*, int32_t, int32_t, int32_t, int32_t) noexcept {}
    virtual int32_t initialize() noexcept { return 0; }
    virtual void terminate() noexcept {}
    virtual size_t fixedWorkspace(int32_t) const noexcept { return 0; }
    virtual int32_t fixedEnqueue(int32_t, void const* const*, void* const*, void*, void*) noexcept { return 1; }
    virtual size_t serializedSize() const noexcept { return 0; }
    virtual void serialize(void*) const noexcept {}
    virtual void destroy() noexcept { delete this; }
    virtual Plugin* clone() const noexcept { return new Plugin; }
    virtual void setNamespace(char const*) noexcept {}
    virtual char const* getNamespace() const noexcept { return ""; }
    virtual ~Plugin() noexcept = default;
    virtual int32_t outputType(int32_t, int32_t const* types, int32_t) const noexcept { return types[0]; }
    virtual bool broadcastsOutput(int32_t, bool const*, int32_t) const noexcept { return false; }
    virtual bool broadcastsInput(int32_t) const noexcept { return false; }
    virtual void configureFixed(Dims const*, int32_t, Dims const*, int32_t, int32_t const*, int32_t const*,
                                bool const*, bool const*, int32_t, int32_t) noexcept {}
    virtual void attach(void*, void*, void*) noexcept {}
    virtual void detach() noexcept {}
    virtual Sizes dims(int32_t, Sizes const* inputs, int32_t, void*) noexcept { return inputs[0]; }
    virtual bool takes(int32_t place, Tensor const* tensors, int32_t, int32_t) noexcept {
        return tensors[place].type == 0 && tensors[place].format == 0;  // float32, linear
    }
    virtual void configure(TensorRange const*, int32_t, TensorRange const*, int32_t) noexcept {}
    virtual size_t workspace(Tensor const*, int32_t, Tensor const*, int32_t) const noexcept { return 0; }
    virtual int32_t enqueue(Tensor const* inputs, Tensor const*, void const* const* sources, void* const* targets,
                            void*, void* stream) noexcept {
        static auto const copy = driver<int (*)(uint64_t, uint64_t, size_t, void*)>("cuMemcpyDtoDAsync_v2");
        static bool const faults = std::getenv("TRTOPS_TEST_FAULTS") != nullptr;
        if (faults) {
            fault(sources[0], stream);
        }
        size_t bytes = sizeof(float);
        for (int32_t axis = 0; axis < inputs[0].dims.count; ++axis) {
            bytes *= static_cast<size_t>(inputs[0].dims.sizes[axis]);
        }
        return copy == nullptr ? 1
                               : copy(reinterpret_cast<uint64_t>(targets[0]), reinterpret_cast<uint64_t>(sources[0]),
                                      bytes, stream);
    }
};

class Creator {
public:
    virtual int32_t version() const noexcept { return VERSION; }
    virtual char const* name() const noexcept { return "CopyRows_Test"; }
    virtual char const* typeVersion() const noexcept { return "1"; }
    virtual Fields const* fields() noexcept { return &fields_; }
    virtual Plugin* create(char const*, Fields const*) noexcept { return new Plugin; }
    virtual Plugin* read(char const*, void const*, size_t) noexcept { return new Plugin; }
    virtual void setNamespace(char const*) noexcept {}
    virtual char const* getNamespace() const noexcept { return ""; }
    virtual ~Creator() = default;

private:
    Fields fields_{0, nullptr};
};

class Registry {
public:
    virtual bool add(Creator& creator, char const* space) noexcept = 0;
};

}  // namespace

extern "C" Registry* getPluginRegistry() noexcept;

namespace {

struct Registered {
    Registered() { getPluginRegistry()->add(creator, ""); }
    Creator creator;
} registered;

}  // namespace
