package alluvium.flink;

import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.IdentityHashMap;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Set;
import org.apache.flink.api.common.state.StateDescriptor;
import org.apache.flink.configuration.ReadableConfig;
import org.apache.flink.runtime.state.CheckpointableKeyedStateBackend;
import org.apache.flink.runtime.state.KeyedStateBackend;
import org.apache.flink.runtime.state.OperatorStateBackend;
import org.apache.flink.runtime.state.StateBackend;
import org.apache.flink.runtime.state.StateBackendFactory;
import org.apache.flink.runtime.state.hashmap.HashMapStateBackend;
import org.apache.flink.runtime.state.internal.InternalKvState;

/**
 * Flink's heap backend, of which each access to keyed state is logged: what {@link LoggedState} says
 * that the RocksDB backend asks its store for the same call.
 *
 * <p>Backend and states are wrapped in proxies of all their interfaces, so that operators find what
 * they cast to.
 */
public final class LoggingBackend implements StateBackend {
    private static final long serialVersionUID = 1;

    private final HashMapStateBackend heap = new HashMapStateBackend();

    /** Makes the backend by the name of its class, in Flink's configuration. */
    public static final class Factory implements StateBackendFactory<LoggingBackend> {
        @Override
        public LoggingBackend createFromConfig(ReadableConfig config, ClassLoader loader) {
            return new LoggingBackend();
        }
    }

    @Override
    public <K> CheckpointableKeyedStateBackend<K> createKeyedStateBackend(
            KeyedStateBackendParameters<K> parameters) throws Exception {
        CheckpointableKeyedStateBackend<K> backend = heap.createKeyedStateBackend(parameters);
        Object proxy = proxy(backend, new Handler(backend));
        @SuppressWarnings("unchecked")
        CheckpointableKeyedStateBackend<K> typed = (CheckpointableKeyedStateBackend<K>) proxy;
        return typed;
    }

    @Override
    public OperatorStateBackend createOperatorStateBackend(OperatorStateBackendParameters parameters)
            throws Exception {
        return heap.createOperatorStateBackend(parameters);
    }

    private static final class Handler implements InvocationHandler {
        private final KeyedStateBackend<?> backend;
        private final Map<Object, LoggedState> states = new IdentityHashMap<>();

        Handler(KeyedStateBackend<?> backend) {
            this.backend = backend;
        }

        @Override
        public Object invoke(Object proxy, Method method, Object[] arguments) throws Throwable {
            Object result = call(backend, method, arguments);
            if (!(result instanceof InternalKvState)) {
                return result;
            }
            LoggedState state = states.computeIfAbsent(result,
                    real -> new LoggedState((InternalKvState<?, ?, ?>) real, backend, descriptor(arguments)));
            if (method.getName().equals("getPartitionedState")) {
                state.namespace = arguments[0];
            }
            return state.proxy;
        }

        private static StateDescriptor<?, ?> descriptor(Object[] arguments) {
            for (Object argument : arguments) {
                if (argument instanceof StateDescriptor) {
                    return (StateDescriptor<?, ?>) argument;
                }
            }
            throw new IllegalStateException("a state without a descriptor");
        }
    }

    /** Calls a method and throws what it throws. */
    static Object call(Object target, Method method, Object[] arguments) throws Throwable {
        try {
            method.setAccessible(true);
            return method.invoke(target, arguments);
        } catch (InvocationTargetException error) {
            throw error.getCause();
        }
    }

    /** A proxy of all interfaces that an object has. */
    static Object proxy(Object target, InvocationHandler handler) {
        Set<Class<?>> interfaces = new LinkedHashSet<>();
        for (Class<?> type = target.getClass(); type != null; type = type.getSuperclass()) {
            interfaces.addAll(java.util.Arrays.asList(type.getInterfaces()));
        }
        interfaces.removeIf(type -> !java.lang.reflect.Modifier.isPublic(type.getModifiers()));
        return Proxy.newProxyInstance(LoggingBackend.class.getClassLoader(),
                interfaces.toArray(new Class<?>[0]), handler);
    }
}
